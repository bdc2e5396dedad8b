"""What the owner may watch while the service runs: counts and durations. Nothing here sees a row or an answer."""
