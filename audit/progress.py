"""The progress of an attack or an audit that takes long."""

from collections.abc import Callable

OnStage = Callable[[str, float], None]
"""Takes what is done now, and which share of all is done."""
