"""Blocks: the parts of a lineage's records that have budgets of their own, as the records of one month.

Which blocks there are is declared, and never read off the records: a list of those that occur would say something about
single records. A record's block is named by a column of its table, or is the same for the whole table.

What a block's budget bounds, for records and for units (`docs/accounting.md` says it in other words). Let neighbours D
and D' differ by one record, or by all records of one unit, of block b, and let an adversary choose every model,
question and price by all answers before. View the answers as one sequence of releases R_1, R_2, ...

1. Which records a model may depend on is decided by its declared blocks: its training takes the records of these alone
   (`BlockDeclaration.places`; the rest are refused or left out, each by its own block and by nothing else). So a
   release whose model lacks b is a function of records that D and D' share, of fresh noise, and of earlier answers.
   Given those, its law is the same in both: its privacy loss is 0.
2. A release whose model has b has, given earlier answers, a loss of at most its price, by the mechanism's proof: the
   records of its other blocks are the same in D and D'. The ledger charges b's account that price in the call that
   admits it, or a release that was charged before is given again, which is the same answer. An evaluation is such a
   release of the blocks that its held-out records lie in, whatever the model's are (`dpserve.training.evaluation`).
3. Whether R_i is admitted is a function of accounts' limits and spends and of prices, all of which are functions of the
   requests and of what was admitted before: of no record. (Whether there is a model to ask may depend on records, as a
   training is refused for a unit in two blocks: that strangers hear of no failed training is assumed.)
   The sequence of those R_i that are of models with b is thus what a filter over b's account admits, where the
   adversary may do anything between them, and what other blocks' models answer in between is, by 1, a choice that it
   could have made itself, of the shared records.
   A filter for adaptively chosen prices bounds the whole by the account's limit: the sum of rho for zCDP (Feldman and
   Zrnic 2021, Theorem 3.1, per individual, where every record of b has spent what b's account says, which is at least
   its own; Whitehouse et al. 2023), and the sum of epsilons for pure losses (Rogers et al. 2016, Theorem 3.6).
   Where every charge is Gaussian, the exact curve of the sum is that of the Gaussian filter, as for all accounts
   (`accounting/budgets.py`: Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023).

A unit must lie in one block for step 1 and 2 to hold of all its records at once. `noted_in_blocks` refuses one that the
digests know from another block; that no unit has another name there is assumed, as it is of lineages. A record that was
written into two blocks is two records to this promise, and a person with both loses at most what both spent.
Sources: Lecuyer et al., SOSP 2019 (block composition); Luo et al., OSDI 2021 (PrivateKube).
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.ledger.receipts import paying
from dpserve.accounting.messages import Message
from dpserve.training.errors import TrainingError
from dpserve.training.inputs.lineage import Overlap, RecordRegistry
from dpserve.training.inputs.records import Digests, Records

if TYPE_CHECKING:
    from dpserve.training.inputs.parsing import RefusedValue

Period = Literal["day", "week", "month", "year"]

NOT_DECLARED = "is in none of the declared blocks"
"""Ending of the refusal of a record whose block is not declared."""

_ISO_DATE = 10
"""Characters of a date as 2026-09-30."""


def period_of(text: str, by: Period) -> str:
    """Return the name of the period in which a date lies, which opens a text as ISO 8601 has it. Raises ValueError.

    An instant with an offset from UTC lies where it does in UTC, as files say that keep instants and no texts.
    """
    day = date.fromisoformat(text[:_ISO_DATE])
    with suppress(ValueError, OverflowError):  # no instant, or one beyond the calendar
        if (instant := datetime.fromisoformat(text)).tzinfo is not None:
            day = instant.astimezone(UTC).date()
    if by == "week":
        year, week, _ = day.isocalendar()
        return f"{year:04}-W{week:02}"
    return day.isoformat()[: {"day": 10, "month": 7, "year": 4}[by]]


def period_named(name: str, by: Period) -> str | None:
    """Return the name of a period that is written as this one is; None for none."""
    with suppress(ValueError):
        if by == "week":
            year, _, week = name.partition("-W")
            return period_of(date.fromisocalendar(int(year), int(week), 1).isoformat(), by)
        return period_of({"day": "{}", "month": "{}-01", "year": "{}-01-01"}[by].format(name), by)
    return None


@dataclass(frozen=True)
class BlockDeclaration:
    """The blocks of a table: their names, in order, and how each record's is found.

    budget: what each opens with, as an owner writes it. column: that names them, None where the table is one block.
    by: the period of its dates. leaves_out: whether records of other blocks are left out, and not refused.
    """

    names: tuple[str, ...]
    budget: str
    column: str | None = None
    by: Period | None = None
    leaves_out: bool = False

    def taken_from(self, records: Records) -> Records:
        """Return records with what is declared of their blocks."""
        declaration = replace(records.declaration, blocks=self.names, block_budget=self.budget)
        return replace(records, declaration=declaration)

    def places(self, values: Any) -> tuple[NDArray[np.int64], "RefusedValue | None"]:
        """Return for each of a batch's values (n,) the place of its block in `names`, -1 for one not declared.

        Beside it the first value that is refused, with why; then the places mean nothing.
        """
        # Only who reads a table should wait for Arrow.
        from dpserve.training.inputs.parsing import numbered

        texts = dict[str, int]()
        numbers, refused = numbered(values, texts, (), what="block")
        if refused:
            return numbers, refused
        known = {name: place for place, name in enumerate(self.names)}
        of = np.empty(len(texts), dtype=np.int64)
        for text, number in texts.items():
            try:
                of[number] = known.get(text if self.by is None else period_of(text, self.by), -1)
            except ValueError:
                return numbers, (
                    int(np.argmax(numbers == number)),
                    f"{text!r} does not begin with a date, as 2026-09-30",
                )
        places = of[numbers]
        if not self.leaves_out and (places < 0).any():
            row = int(np.argmax(places < 0))
            text = next(text for text, number in texts.items() if number == numbers[row])
            return places, (row, f"{text!r} {NOT_DECLARED}")
        return places, None


@contextmanager
def noted_in_blocks(records: Records, lineage: str, state: Path, *, equal_rows_are_others: bool) -> Iterator[None]:
    """Note which records and units are in which block while something is done, and for good when it has succeeded.

    Records of no declared block are the unnamed one's. As lineages are (`RecordRegistry`), in a folder of each
    lineage's. Raises TrainingError for a unit that is in another
    block, and for records whose whole rows are in another one, unless the owner says that these are other people's.
    """
    registry = RecordRegistry(state, blocks_of=lineage)
    with ExitStack() as stack:
        for block, elsewhere in _note_parts(registry, records, stack):
            for other, shared in elsewhere.items():
                _check_apart(block, other, shared, equal_rows_are_others=equal_rows_are_others)
        yield


def _note_parts(
    registry: RecordRegistry, records: Records, stack: ExitStack
) -> Iterator[tuple[str, Mapping[str, Overlap]]]:
    """Note each block's records until the stack ends; yield the block, and what others have of it."""
    for place, block in enumerate(paying(records.declaration.blocks)):
        part = _part_of(records, place)
        if len(part):
            noted = registry.noted(block, registry.digests(part), records.unit)
            yield block, stack.enter_context(noted)


def _check_apart(block: str, other: str, shared: Overlap, *, equal_rows_are_others: bool) -> None:
    if shared.units:
        raise TrainingError(
            f"{shared.units:,} units of {_called(block)} are in {_called(other)}, too: a unit is in one block, whose "
            "budget bounds what is learnt of it. Put all records of a unit into one block, as that of its first record"
        )
    if shared.records and not equal_rows_are_others:
        raise TrainingError(
            Message(
                "{:,} records of {} have rows that are in {}, too: a record is in one block, whose budget "
                "bounds what is learnt of it. Leave them out of one; or, if they are other people's, say so "
                "with {equal_rows_in_blocks_are_others}",
                shared.records,
                _called(block),
                _called(other),
            )
        )


def _called(block: str) -> str:
    return f"the block {block}" if block else "the unnamed block"


def _part_of(records: Records, place: int) -> Records:
    """Return the records of one block, with their own sources and keys."""
    if records.block_places is None:
        return records
    mask = records.block_places == place
    if mask.all():
        return records
    part = records.taken(mask)
    assert isinstance(records.source, Digests)  # of a table, which alone has a column of blocks
    return replace(
        part, source=Digests(records.source.octets[mask]), ids=None if records.ids is None else records.ids[mask]
    )
