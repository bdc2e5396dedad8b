"""Frozen public networks whose features feed a certified head. Importing the modules below needs PyTorch."""
