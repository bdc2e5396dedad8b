"""Objective perturbation: the minimum of the objective plus a random linear function, released once."""
