"""`dpserve reproduce`."""

from training.reproduction.command import app

__all__ = ["app"]
