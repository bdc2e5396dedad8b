"""The owner's side: a separate application on a port of its own, bound to loopback unless told otherwise."""
