"""Runs `dpserve` in a process that is killed, as by a power cut, once one of its functions has returned.

Only tests know of it: nothing in the product can be told to die.
"""

import inspect
import os
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any

from dpserve.accounting.ledger import Ledger, purchases
from dpserve.service.http.authentication import Authentication
from dpserve.service.http.codec import RowsCodec
from dpserve.service.metered import MeteredPredictor
from dpserve.service.pay_once import PayOncePredictor

STEPS = ("charged", "released", "answered", "authenticated", "validated")
"""Those of every request for rows; first those that a charge precedes, which quick forms take."""

OPENED, HELD = "opened", "held"
"""Those of a pay-once model's start: its lineage was found to be able to pay and was opened, and was charged."""

_FUNCTIONS: dict[str, list[tuple[Any, str]]] = {
    "authenticated": [(Authentication, "payer")],
    "validated": [(RowsCodec, "decode")],
    "charged": [(Ledger, "charge_batch")],
    "released": [(MeteredPredictor, "_answer_batch"), (PayOncePredictor, "predict")],
    "answered": [(RowsCodec, "encode")],
    OPENED: [(purchases, "settle_unit")],
    HELD: [(Ledger, "charge")],
}


def _dying(function: Callable[..., Any], step: str) -> Callable[..., Any]:
    """Return the function, followed by this process's death."""

    def die(arguments: tuple[Any, ...]) -> None:
        of_the_owner = step == "charged" and not any(getattr(request, "client", "") for request in arguments[-1])
        if not of_the_owner:
            os.kill(os.getpid(), signal.SIGKILL)

    async def awaited(*arguments: Any, **named: Any) -> Any:
        result = await function(*arguments, **named)
        die(arguments)
        return result

    def called(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        die(arguments)
        return result

    return awaited if inspect.iscoroutinefunction(function) else called


def main(step: str, *words: str) -> None:
    """Run the command line with these words."""
    for owner, name in _FUNCTIONS[step]:
        setattr(owner, name, _dying(getattr(owner, name), step))
    sys.argv = ["dpserve", *words]
    runpy.run_module("dpserve", run_name="__main__")
