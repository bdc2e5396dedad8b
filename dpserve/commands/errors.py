"""The error of commands."""


class CommandError(Exception):
    """A command did not do what it was asked for; one clear line says why."""
