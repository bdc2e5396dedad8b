"""The choice of blocks: declared options, and what they mean together."""

from collections.abc import Mapping
from typing import Literal

from dpserve.accounting.ledger.receipts import checked_blocks
from dpserve.accounting.messages import Message
from dpserve.training.errors import WrongOption
from dpserve.training.inputs.blocks import BlockDeclaration, Period, period_named
from dpserve.training.options import Options, option

_EXAMPLES: Mapping[Period, str] = {"day": "2026-09-30", "week": "2026-W40", "month": "2026-09", "year": "2026"}


class Blocks(Options):
    """The declared blocks of a table of records. Each has a budget of its own: the lineage's that is declared."""

    panel = "Blocks of records, each with a budget"

    block: str | None = option(
        None,
        "Of a table: the column that names each record's block, or with a period a date. It is no feature. Every block "
        "has a budget of its own, which pays for what models say of its records.",
    )
    blocks: str | None = option(
        None, "The blocks that the records are in, between commas: declared, not read off the records."
    )
    block_by: Literal["day", "week", "month", "year"] | None = option(
        None,
        "The period of a column of dates that is a block: 2026-09-30, 2026-W40, 2026-09 or 2026.",
        default_text="none, the column's values are the blocks' names",
    )
    block_name: str | None = option(
        None, "The one block that all records of the table are in, where no column names it."
    )
    leave_out_other_blocks: bool = option(
        False, "Leave out records of blocks that are not declared, instead of refusing them."
    )
    equal_rows_in_blocks_are_others: bool = option(
        False, "Rows that are equal to rows of another block in every column are known to be other people's."
    )

    def declared(self, budget: str | None) -> BlockDeclaration | None:
        """Return the declared blocks; None where none are.

        budget: with which each opens when a model of it is first charged, "" for none; None where they are open.
        Raises WrongOption for what does not go together.
        """
        self._check_together()
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
        if budget == "":
            raise WrongOption(
                "lineage_epsilon", "is needed", remedy=Message("with {lineage_delta}, what each block opens with")
            )
        if (by := self.block_by) is not None and (odd := [name for name in names if period_named(name, by) != name]):
            raise WrongOption("blocks", f"{odd[0]!r} is no {by}, as {_EXAMPLES[by]} is one")
        return BlockDeclaration(names, budget or "", self.block, by, leaves_out=self.leave_out_other_blocks)

    def _check_together(self) -> None:
        """Raise WrongOption for options that do not go with each other, or are needed."""
        if self.block is not None and self.block_name is not None:
            raise WrongOption("block_name", Message("takes the place of {block}: give one of them"))
        if self.block is None and (lone := next((n for n in ("blocks", "block_by") if getattr(self, n)), None)):
            raise WrongOption(lone, Message("goes with {block}"))
        if self.block is not None and not self.blocks:
            raise WrongOption("blocks", "is needed", remedy="the blocks that the records are in, between commas")
