"""Lu et al. 2022, rerun: its printed figures, ours beside them, and how far apart they are."""
