"""Counts and durations that the owner may watch while the service runs. Nothing here sees a row or an answer."""
