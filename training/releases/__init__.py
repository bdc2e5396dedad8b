"""Releases that are paid for once: models that are private themselves, so that no answer costs anything."""
