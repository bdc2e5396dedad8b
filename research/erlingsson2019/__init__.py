"""Erlingsson et al. 2019: the region of privacy of DP-SGD."""
