"""What reproduces papers and measures rivals. It is not installed with dpserve, and nothing of dpserve imports it."""
