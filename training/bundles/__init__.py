"""Certificates, and the sealed folders that hold them with a model's numbers."""
