"""The lineage of records as its owner names it in Python, with the budget that it opens with."""

from pathlib import Path
from typing import Any

from dpserve.accounting.budgets import Budget
from dpserve.prices import budget_text
from dpserve.training.block_choice import Blocks
from dpserve.training.errors import WrongOption
from dpserve.training.options import Options, option


class Lineage(Options):
    """The lineage of records: all models of records that overlap share one, and its budget.

    Lineage("patients", epsilon=3, delta=1e-6)
    """

    name: str = option(..., "Your name for it: letters, digits, '.', '_' and '-', at most 64.")
    epsilon: float | None = option(
        None, "With delta, the budget that it opens with where it has none; of blocks, that of each."
    )
    delta: float | None = option(None, "The delta of epsilon, above 0 and below 1.")
    blocks: Blocks = option(Blocks(), "The blocks that the records are in, each with a budget of its own.")
    overlapping_lineage_is_accepted: bool = option(
        False, "Train although records are in another lineage: they then have a second budget."
    )
    ledger: Path | str | None = option(None, "The URL or the folder of the ledger.", default_text="the command line's")
    ledger_replicas: int | None = option(
        None,
        "The number of the store's replicas on whose disks a charge must be, too.",
        ge=0,
        default_text="the command line's",
    )

    def __init__(self, name: str, **more: Any) -> None:
        """Take the name first. Raises WrongOption."""
        super().__init__(name=name, **more)

    @property
    def budget_text(self) -> str:
        """The budget that it opens with, as bundles state it; "" for none. Raises WrongOption."""
        return budget_text(self.epsilon, self.delta)

    @property
    def budget(self) -> Budget | None:
        """The budget that its block without a name opens with. Raises WrongOption."""
        if not self.budget_text or self.blocks.declared(None) is not None:
            return None
        try:
            return Budget.parse(self.budget_text, "gaussian")
        except ValueError as error:
            raise WrongOption("lineage_epsilon", f"is no budget: {error}", value=self.epsilon) from error
