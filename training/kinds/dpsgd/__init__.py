"""Models trained by DP-SGD: private themselves, so that every answer is free.

`network` computes clipped gradient sums, on `exact` products, `step` makes them private, `descent` follows them.
"""
