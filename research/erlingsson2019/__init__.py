"""Erlingsson et al. 2019: the region of privacy of DP-SGD, and of a mechanism."""
