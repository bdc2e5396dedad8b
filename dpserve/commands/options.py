"""Options that several commands share, and what they turn into."""

import os
from pathlib import Path
from typing import Annotated

import typer
from platformdirs import user_state_path

from accounting.budgets import Accepts, Budget

Ledger_ = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        envvar="DPSERVE_LEDGER",
        help="redis://host:port/db of a Redis or Valkey, or the folder of the embedded ledger. "
        "[default: the embedded one in your state folder]",
        show_default=False,
    ),
]
Epsilon = Annotated[float | None, typer.Option("--epsilon", help="The budget's epsilon, with --delta.")]
Delta = Annotated[float | None, typer.Option("--delta", help="The budget's delta, as 1e-6.")]
Rho = Annotated[float | None, typer.Option("--rho", help="The budget as zCDP rho; --delta is then used to report.")]
AcceptsOption = Annotated[
    str,
    typer.Option(
        "--accepts",
        help="'gaussian': pays for Gaussian noise only, which buys more of it for the same epsilon; 'any': pays "
        "for every mechanism.",
    ),
]


def state_folder() -> Path:
    """Return where an owner's ledger and lineage key live: DPSERVE_HOME, or the user's state folder."""
    return Path(os.environ["DPSERVE_HOME"]) if "DPSERVE_HOME" in os.environ else user_state_path("dpserve")


def ledger_location(given: str | None) -> str:
    """Return the URL or folder to open the ledger at."""
    return given if given is not None else str(state_folder() / "ledger")


def budget_of(
    epsilon: float | None, delta: float | None, rho: float | None, accepts: str, *, required: bool
) -> Budget | None:
    """Return the budget that the options describe, or None when there are none and none is required."""
    if epsilon is None and rho is None and delta is None and not required:
        return None
    if accepts not in ("gaussian", "any"):
        raise typer.BadParameter("must be 'gaussian' or 'any'", param_hint="--accepts")
    kind: Accepts = "gaussian" if accepts == "gaussian" else "any"
    if (epsilon is None) == (rho is None) or delta is None:
        raise typer.BadParameter("give a budget as --epsilon E --delta D, or as --rho R --delta D")
    if epsilon is not None:
        return Budget.from_epsilon_delta(epsilon, delta, kind)
    return Budget.from_rho(rho or 0.0, delta, kind)
