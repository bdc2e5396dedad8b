"""Rerunning a paper: its printed figures, ours beside them, and how far apart they are."""
