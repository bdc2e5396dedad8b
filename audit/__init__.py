"""Attacks and audits. Reaches a running service only through a public client that it is given."""
