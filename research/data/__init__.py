"""Readers of the public data sets of the papers, as their publishers distribute them."""
