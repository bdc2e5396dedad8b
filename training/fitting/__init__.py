"""Objectives, the solver, networks and their gradients, and how far one record can move what they give."""
