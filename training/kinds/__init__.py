"""Kinds of models: a folder for each, and the registry of all."""
