"""Reproductions of papers and measurements of rivals. Not installed with dpserve; nothing of dpserve imports it."""
