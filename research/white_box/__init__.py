"""Auditing DP-SGD with access to every step (Nasr et al. 2023): canaries, observations, bounds, planted faults."""
