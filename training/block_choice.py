"""The choice of blocks: declared options, and what they mean together."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger.receipts import checked_blocks
from dpserve.accounting.messages import Message
from dpserve.training.errors import WrongOption
from dpserve.training.inputs.blocks import BlockDeclaration, Period, period_named
from dpserve.training.kinds.options import Declared, Options

_EXAMPLES: Mapping[Period, str] = {"day": "2026-09-30", "week": "2026-W40", "month": "2026-09", "year": "2026"}


@dataclass(frozen=True, kw_only=True)
class BlockChoice(Options):
    """The declared blocks of a table of records."""

    block: Annotated[
        str | None,
        Declared(
            "Of a table: the column that names each record's block, or with a period a date. It is no feature. Every "
            "block has a budget of its own, which pays for what models say of its records."
        ),
    ] = None
    blocks: Annotated[
        str | None, Declared("The blocks that the records are in, between commas: declared, not read off the records.")
    ] = None
    block_by: Annotated[
        Literal["day", "week", "month", "year"] | None,
        Declared(
            "The period of a column of dates that is a block: 2026-09-30, 2026-W40, 2026-09 or 2026.",
            default_text="none, the column's values are the blocks' names",
        ),
    ] = None
    block_name: Annotated[
        str | None, Declared("The one block that all records of the table are in, where no column names it.")
    ] = None
    block_budget: Annotated[
        str | None,
        Declared("The budget with which each block opens when a model of it is first charged.", form="epsilon:3@1e-6"),
    ] = None
    leave_out_other_blocks: Annotated[
        Literal["no", "yes"],
        Declared("What becomes of records of blocks that are not declared: no refuses them, yes leaves them out."),
    ] = "no"
    equal_rows_in_blocks_are_others: Annotated[
        Literal["no", "yes"],
        Declared(
            "Whether rows that are equal to rows of another block in every column are known to be other people's."
        ),
    ] = "no"

    @cached_property
    def declaration(self) -> BlockDeclaration | None:
        """The declared blocks; None where none are. Raises WrongOption for what does not go together."""
        return self.declared(needs_budget=True)

    def declared(self, *, needs_budget: bool) -> BlockDeclaration | None:
        """Return the declared blocks; None where none are.

        needs_budget: whether they open with one that is stated; else it may be empty, for blocks that are open. Raises
        WrongOption for what does not go together.
        """
        self._check_together(needs_budget=needs_budget)
        if self.block is None and self.block_name is None:
            return None
        names = tuple(sorted(name.strip() for name in str(self.block_name or self.blocks).split(",")))
        named_by = "blocks" if self.block_name is None else "block_name"
        if self.block_name is not None and len(names) > 1:
            raise WrongOption("block_name", "is the name of one block", value=self.block_name)
        try:
            checked_blocks(names)
        except ValueError as error:
            raise WrongOption(named_by, str(error), value=getattr(self, named_by)) from error
        budget = self.block_budget or ""
        try:
            if budget or needs_budget:
                Budget.parse(budget, "any")
        except ValueError as error:
            raise WrongOption("block_budget", str(error), value=budget) from error
        if (by := self.block_by) is not None and (odd := [each for each in names if period_named(each, by) != each]):
            raise WrongOption("blocks", f"{odd[0]!r} is no {by}, as {_EXAMPLES[by]} is one")
        return BlockDeclaration(names, budget, self.block, by, leaves_out=self.leave_out_other_blocks == "yes")

    def _check_together(self, *, needs_budget: bool) -> None:
        """Raise WrongOption for options that do not go with each other, or are needed."""
        if self.block is not None and self.block_name is not None:
            raise WrongOption("block_name", Message("takes the place of {block}: give one of them"))
        if self.block is None and (lone := next((n for n in ("blocks", "block_by") if getattr(self, n)), None)):
            raise WrongOption(lone, Message("goes with {block}"))
        if self.block is None and self.block_name is None:
            if self.block_budget is not None:
                raise WrongOption("block_budget", Message("goes with {block} or {block_name}"))
            return
        if self.block is not None and not self.blocks:
            raise WrongOption("blocks", "is needed", remedy="the blocks that the records are in, between commas")
        if needs_budget and self.block_budget is None:
            raise WrongOption("block_budget", "is needed", remedy="what each block opens with, as epsilon:3@1e-6")
