"""Options that several commands share, and what they turn into."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, cast, get_args

import typer
from platformdirs import user_state_path

from accounting.budgets import Accepts, Budget

Ledger_ = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        envvar="DPSERVE_LEDGER",
        help="redis://host:port/db of a Redis or Valkey, redis+sentinel://host:port/service, "
        "redis+cluster://host:port, or the folder of the embedded ledger. "
        "[default: the embedded one in your state folder]",
        show_default=False,
    ),
]
Replicas = Annotated[
    int,
    typer.Option(
        "--ledger-replicas",
        envvar="DPSERVE_LEDGER_REPLICAS",
        min=0,
        help="On how many of the store's replicas a charge must be on disk, too, before it is answered.",
    ),
]
Epsilon = Annotated[float | None, typer.Option("--epsilon", help="The budget as epsilon, at --delta.")]
Delta = Annotated[
    float | None,
    typer.Option("--delta", help="The budget's delta, as 1e-6: part of --epsilon, and where a budget is reported."),
]
Rho = Annotated[float | None, typer.Option("--rho", help="The budget as zCDP rho.")]
Mu = Annotated[float | None, typer.Option("--mu", help="The budget as mu of mu-GDP, for Gaussian noise only.")]
PosteriorBelief = Annotated[
    float | None,
    typer.Option(
        "--posterior-belief",
        help="The budget as the surest belief about one record, from 0.5 to below 1, that someone at even odds may "
        "reach, except with probability --delta.",
    ),
]
Advantage = Annotated[
    float | None,
    typer.Option(
        "--advantage",
        help="The budget as the most, between 0 and 1, by which any attack may catch members more often than it "
        "accuses others.",
    ),
]
AcceptsOption = Annotated[
    str,
    typer.Option(
        "--accepts",
        help="'gaussian': pays for Gaussian noise only, which buys more of it for the same epsilon; 'any': pays "
        "for every proven mechanism; 'unproven': for claims as well.",
    ),
]
AcceptsWhatIsNeeded = Annotated[
    str | None,
    typer.Option(
        "--accepts",
        help="What the account pays for: 'gaussian' noise only, or 'any'. "
        "[default: what the mechanism or the lineage needs]",
        show_default=False,
    ),
]


def state_folder() -> Path:
    """Return where an owner's ledger and lineage key live: DPSERVE_HOME, or the user's state folder."""
    return Path(os.environ["DPSERVE_HOME"]) if "DPSERVE_HOME" in os.environ else user_state_path("dpserve")


def journals_folder() -> Path:
    """Return where the services of this machine write down what the ledger acknowledged to them."""
    return state_folder() / "journals"


def ledger_location(given: str | None) -> str:
    """Return the URL or folder to open the ledger at: as given, else as the configuration's file says."""
    if given is None:
        given = configured_ledger()
    if given is None:
        return str(state_folder() / "ledger")
    if not given or (":" in given and "://" not in given):
        raise typer.BadParameter(
            f"{given!r} is neither a URL, as redis://host:6379/0, nor a folder: it would become a new "
            "ledger, with nothing spent",
            param_hint="--ledger",
        )
    return given


def configured_ledger() -> str | None:
    """Return the ledger of the configuration's file, or None."""
    from dpserve.configuration import shared_setting

    return shared_setting("ledger")


@dataclass(frozen=True, kw_only=True)
class BudgetWords:
    """A budget as an owner may say it: in one of these words, with a delta."""

    epsilon: float | None = None
    rho: float | None = None
    mu: float | None = None
    posterior_belief: float | None = None
    advantage: float | None = None
    delta: float | None = None

    def budget(self, accepts: str) -> Budget:
        """Return the budget, rounded down. Raises BadParameter unless just one word is given, and ValueError for
        a number that means nothing, naming the valid range.
        """
        if accepts not in get_args(Accepts):
            raise typer.BadParameter("must be 'gaussian', 'any' or 'unproven'", param_hint="--accepts")
        kind = cast(Accepts, accepts)
        given = [name for name, value in asdict(self).items() if value is not None and name != "delta"]
        if len(given) != 1 or self.delta is None:
            raise typer.BadParameter(
                "give a budget by one of --epsilon, --rho, --mu, --posterior-belief or --advantage, and "
                "always with --delta"
            )
        match self:
            case BudgetWords(epsilon=float(epsilon)):
                return Budget.from_epsilon_delta(epsilon, self.delta, kind)
            case BudgetWords(rho=float(rho)):
                return Budget.from_rho(rho, self.delta, kind)
            case BudgetWords(posterior_belief=float(belief)):
                return Budget.from_posterior_belief(belief, self.delta, kind)
            case BudgetWords(advantage=float(advantage)):
                return Budget.from_advantage(advantage, self.delta, kind)
            case BudgetWords(mu=float(mu)) if kind == "gaussian":
                return Budget.from_mu(mu, self.delta)
        raise typer.BadParameter("is for accounts that accept Gaussian noise only", param_hint="--mu")

    def budget_if_given(self, accepts: str) -> Budget | None:
        """Return the budget, or None where no word of it was said."""
        return None if self == BudgetWords() else self.budget(accepts)

    def budgets(self) -> dict[Accepts, Budget]:
        """Return the same budget as each kind of account would hold it; mu has a meaning for one kind only."""
        kinds: tuple[Accepts, ...] = ("gaussian",) if self.mu is not None else ("gaussian", "any")
        return {kind: self.budget(kind) for kind in kinds}
