"""Whether answers were paid for: each key's account against the rows it asked about, and the account that keys share.

A decision of an attack is compared with the price of the answers that it saw. That is the claim only where the price
was charged: a service that charges less lets the same budget buy more answers than the claim is for.

Every check here holds for a sound service, whoever else uses its keys meanwhile, unless its owner raises a budget
during the attack:

- An account has spent, ever, at least the price of every row that its key has answers to. A row that was asked about
  before this attack is a replay, and was paid for then.
- Keys of different clients share the lineage's account, which pays once for a question. Where that is what limits them,
  `queries_left` shows it: it falls by at least the price of questions that nobody can have asked before.
- One row more than `queries_left` is refused whole, and costs nothing.
- The same question again gets the same answer, for every client: a replay, which adds nothing. New noise is paid for.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.accounting.budgets import currency_of
from dpserve.accounting.losses import Cost
from dpserve.accounting.picorho import PICORHO_PER_RHO
from dpserve.audit.endpoint import Endpoint, Exhausted, row_name
from dpserve.audit.membership.asking import Answered
from dpserve.audit.membership.plan import rows_of_its_own

Account = Mapping[str, Any]

TIMES = 1000
"""Number of times that one row is asked about again."""


@dataclass(frozen=True)
class Charges:
    """The charges to the keys. price: of a row's answer, 0 for a model that is paid for once.

    Amounts are in 1e-12 of `currency`, what the keys' accounts count. rows: different rows that each key has answers
    to. spent: of each key's account, ever. replayed: rows
    asked about now that were not charged now. shared: whether the keys' spending lowers the lineage's account; None
    where that cannot be seen. overdrawn: keys, by number, that were answered one row more than they had left; refused:
    keys that were not. Keys in neither have more left than one request may ask about.
    """

    price: int
    rows: tuple[int, ...]
    spent: tuple[int, ...]
    replayed: tuple[int, ...]
    shared: bool | None
    overdrawn: tuple[int, ...]
    refused: tuple[int, ...]
    currency: str = "rho"

    @property
    def faults(self) -> tuple[str, ...]:
        """Sentences on what no sound service does."""
        faults = [
            f"key {key} has answers to {rows} rows, which cost {self.currency} = {_units(rows * self.price)}, and its "
            f"account has spent {self.currency} = {_units(spent)} in all"
            for key, (rows, spent) in enumerate(zip(self.rows, self.spent, strict=True), start=1)
            if spent < rows * self.price
        ]
        if self.shared is False:
            faults.append(
                "what the keys are charged does not lower what they may spend together: nothing caps collusion"
            )
        faults += [
            f"key {key} was answered one row more than its account and the lineage's pay for" for key in self.overdrawn
        ]
        return tuple(faults)

    @property
    def cautions(self) -> tuple[str, ...]:
        """Sentences on what could not be tested."""
        cautions = tuple(
            f"key {key} was not charged for {count} of {rows} rows, and had spent enough before for them to be replays "
            "(a new key would show it)"
            for key, (count, rows, spent) in enumerate(zip(self.replayed, self.rows, self.spent, strict=True), start=1)
            if count and spent >= rows * self.price
        )
        if len(self.rows) > 1 and self.price and self.shared is None:
            cautions += (
                "the keys' own accounts end before the lineage's, or are one: whether what they spend is shared was "
                "not tested (give keys that together could spend more than the lineage has)",
            )
        return cautions


def charges_of(
    model: Mapping[str, Any],
    rows: Floats,
    answered: Answered,
    before: Sequence[Account],
    after: Sequence[Account],
    prior_rows: Sequence[int],
    overdraws: Sequence[bool | None],
) -> Charges:
    """Return what answers to rows (keys, n, d) cost. before, after: `GET /budget` of each key, around the asking.

    All keys but the first asked about rows of their own (`dpserve.audit.membership.plan.rows_of_keys`). prior_rows:
    rows that each key had answers to, from a journal. overdraws: `overdraw` of each key.
    """
    price, currency = price_of(model, after[0]), str(after[0]["currency"])
    if {str(account["currency"]) for account in after} != {currency}:
        raise ValueError("the accounts of the keys count in different currencies: attack with keys of one")
    there = ~np.isnan(answered.answers[:, :, 0])
    counts = [len({row_name(row) for row in asked[places]}) for asked, places in zip(rows, there, strict=True)]
    charged = [spent_of(late) - spent_of(early) for early, late in zip(before, after, strict=True)]
    new = [count - old for count, old in zip(counts, prior_rows, strict=True)]
    return Charges(
        price,
        tuple(counts),
        tuple(spent_of(account) for account in after),
        tuple(max(0, due - paid // price) if price else 0 for due, paid in zip(new, charged, strict=True)),
        _lineage_is_shared(before, after, charged, new, price) if price else None,
        tuple(key for key, beyond in enumerate(overdraws, start=1) if beyond),
        tuple(key for key, beyond in enumerate(overdraws, start=1) if beyond is False),
        currency,
    )


def overdraw(endpoint: Endpoint) -> bool | None:
    """Ask about one row more than is left, rows that nobody asked about before; return whether they were answered.

    None where a request may not ask about so many, or answers cost nothing more. Raises EndpointError.
    """
    model, left = endpoint.model(), endpoint.budget()["queries_left"]
    if left is None or left + 1 > int(model["largest_batch"]):
        return None
    lower, upper = (np.asarray(model["feature_map"][end], dtype=np.float64) for end in ("lower", "upper"))
    # Not from the attack's seed: a row that was asked about before is a replay, and is answered.
    rows = lower + (upper - lower) * np.random.default_rng().random((int(left) + 1, len(lower)))
    try:
        endpoint.answers(np.clip(rows, lower, upper))
    except Exhausted:
        return False
    return True


@dataclass(frozen=True)
class Replays:
    """One row asked about `times` more.

    answers: how many different ones came, with the one before. charged: what that cost; price: of a new answer, 0 where
    answers cost nothing because the model was paid for once. Both in 1e-12 of `currency`, what the account counts.
    """

    times: int
    answers: int
    charged: int
    price: int
    currency: str = "rho"

    @property
    def averaging_is_free(self) -> bool:
        """Whether new noise came for less than its price: then its average costs less than what it tells.

        Every answer but the one before is new noise, and two that differ are not one release. So a service that charges
        for each charges at least (answers - 1) * price; one that forgot replays charges for them, too, and equal
        answers may have been paid for more than once. A model that was paid for once has one answer to a row.
        """
        if self.price == 0:
            return self.answers > 1
        return self.charged < (self.answers - 1) * self.price


def ask_again(endpoint: Endpoint, row: Floats, first: Floats, *, times: int = TIMES) -> Replays:
    """Ask about one row (d,), whose answer was `first` (C,), so many times more; fewer where the budget ends first.

    Raises EndpointError.
    """
    model = endpoint.model()
    size = min(times, int(model["largest_batch"]))
    account = endpoint.budget()
    before, price = spent_of(account), price_of(model, account)
    different = {first.tobytes()}
    asked = 0
    with suppress(Exhausted):
        while asked < times:
            again = endpoint.answers(np.tile(row, (min(size, times - asked), 1)))
            different |= {answer.tobytes() for answer in again}
            asked += len(again)
    charged = spent_of(endpoint.budget()) - before
    return Replays(asked, len(different), charged, price, str(account["currency"]))


def price_of(model: Mapping[str, Any], account: Account) -> int:
    """Return the price of a row's answer in 1e-12 of what the account counts; 0 where the model was paid for once."""
    price = model.get("price_per_row")
    if not price or not price["losses"]:
        return 0
    return currency_of(str(account["accepts"])).price(Cost.parse(str(price["losses"]))) or 0


def spent_of(account: Account) -> int:
    """Return what was spent in 1e-12, by which an account divides: below 2^53 the nearest integer is what it had."""
    return round(float(account["spent"][account["currency"]]) * PICORHO_PER_RHO)


def _lineage_is_shared(
    before: Sequence[Account], after: Sequence[Account], charged: Sequence[int], new: Sequence[int], price: int
) -> bool | None:
    """Return whether questions that no client asked before lowered what the lineage has left; None if it is not seen.

    The near-copies of a key follow from the key, so that nobody else asked about them. If a key was charged exactly for
    the `new` rows that it asked about now, each was new to its client, and so to the lineage; keys of one client are
    charged for each other's rows, too, and count nothing here. Where the lineage limited a key before, it had less than
    (q + 1) * price left, q being `queries_left` before, and has q' * price or more afterwards.
    """
    fresh = sum(paid for paid, due in zip(charged[1:], new[1:], strict=True) if paid == price * due)
    seen = []
    for early, late in zip(before, after, strict=True):
        of_account, left = rows_of_its_own(early), early["queries_left"]
        if of_account is not None and left < of_account:
            seen.append(int(late["queries_left"]) * price < (int(left) + 1) * price - fresh)
    return all(seen) if seen and fresh else None


def _units(amount: int) -> str:
    return f"{amount / PICORHO_PER_RHO:.4g}"
