"""Points on a request's way at which a test may have the process die, as a power cut would have it.

Nothing happens at any of them unless DPSERVE_FAULT_POINT names one when the process starts: `charged`, or
`charged:3` for its third passing. Only tests set it.
"""

import os
import signal

VARIABLE = "DPSERVE_FAULT_POINT"

POINTS = ("authenticated", "validated", "charged", "released", "settled", "answered")
"""Those that every request for rows passes."""

OPENED, HELD = "opened", "held"
"""Passed by a service of a model that is paid for once, before it listens: when its lineage has an account that could
pay for the model, and when that account was charged for it."""

_name, _, _passing = os.environ.get(VARIABLE, "").partition(":")
_left = int(_passing or 1)


def pass_point(name: str) -> None:
    """Die here and now, without any clean-up, if this is the point and the passing that was named."""
    global _left
    if name == _name:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
