"""Offline: data, feature maps, objectives, solvers, sensitivity, certificates and bundles.

Imports only `mechanisms` and `accounting`.
"""
