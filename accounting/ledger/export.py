"""A lineage's acts and receipts as JSON lines: the audit trail, for the owner's own tools.

`kind` is `receipt`, or of an act what the owner did. `scope` and `name` say whom it is about; `blocks`, with spaces
between, which of the lineage paid. What has an amount says its unit. An epsilon is at `delta`, of an act that of the
account, of a receipt the client's of now: epsilons add up only in accounts that count them, rho does in the others.
`price_epsilon` is pure.
"""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from dpserve.accounting.budgets import Budget
from dpserve.accounting.currency import EPSILON, RHO
from dpserve.accounting.ledger.owner import Acts
from dpserve.accounting.ledger.reading import reading
from dpserve.accounting.ledger.receipts import Act, Receipt
from dpserve.accounting.ledger.verification import all_acts, all_receipts
from dpserve.accounting.ledger.wire import read_budget
from dpserve.accounting.picorho import to_rho

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BUDGET = ("limit", "accepts", "delta", "coins")


async def export(owner: Acts, lineage: str) -> AsyncIterator[str]:
    """Yield the lines of an export of all acts and then all receipts that there are now. Raises UnknownLineage.

    Times are in UTC, as ISO 8601 has them, hashes hexadecimal, amounts in rho, and as epsilon rounded up.
    That it was exported is an act itself, the newest of them, unless the lineage was forgotten, which has no acts any
    more.
    """
    ledger = owner.ledger
    account = await ledger.lineage_or_forgotten(lineage)
    if not account.is_forgotten:
        await owner.note(lineage, "export", {"what": "audit trail", "receipts": account.newest_receipt})
    account, clients, *_ = await ledger.snapshot(lineage)
    budgets = {client.client: client.budget for client in clients} | {"": account.budget}
    acts = await all_acts(ledger, lineage, account.newest_act)
    with reading(lineage):
        described = list(_described_acts(acts))
    for act in described:
        yield _line(act)
    async for receipt in all_receipts(ledger, lineage, account.newest_receipt):
        yield _line(_described_receipt(receipt, budgets[receipt.client]))


def _described_acts(acts: Sequence[Act]) -> Iterator[dict[str, Any]]:
    """Yield what each of a lineage's acts did, all of them from the first on.

    A new budget is called `raise`, `lower` or `budget`, by what was changed of the one before.
    Raises ValueError, KeyError or TypeError for an act that cannot be read.
    """
    budgets = dict[str, Budget]()
    for act in acts:
        details, before = act.details, budgets.get(act.subject)
        scope, _, name = act.subject.partition(":")
        row = {
            "kind": act.kind,
            "number": act.sequence,
            "time_utc": _iso(float(act.time)),
            "by": act.by,
            "why": act.why,
            "scope": scope,
            "name": name,
        }
        if "limit" in details:
            budget = budgets[act.subject] = read_budget(details)
            row |= _budget(budget)
            if before is not None:
                row |= {"kind": _change(before, budget)} | {
                    f"limit_before_{unit}": value for unit, value in _amount(before, before.limit).items()
                }
        detail = {key: value for key, value in details.items() if key not in (*_BUDGET, "group")}
        row |= {"group": details["group"]} if "group" in details else {}
        yield row | {"detail": detail, "hash_sha256": act.hash.hex()}


def _change(before: Budget, after: Budget) -> str:
    if before.limit != after.limit:
        return "raise" if after.limit > before.limit else "lower"
    return "budget"


def _budget(budget: Budget) -> dict[str, Any]:
    stated: dict[str, Any] = {f"limit_{unit}": value for unit, value in _amount(budget, budget.limit).items()}
    return stated | {"delta": budget.delta, "accepts": budget.accepts}


def _amount(budget: Budget, amount: int) -> dict[str, float | None]:
    try:
        epsilon = budget.epsilon_at(amount)
    except ValueError:  # more than this budget's delta provides for: it was paid for at another one
        epsilon = None
    return {"rho": to_rho(amount) if budget.currency is RHO else None, "epsilon": epsilon}


def _described_receipt(receipt: Receipt, budget: Budget) -> dict[str, Any]:
    """Return what a receipt says. budget: its payer's."""
    pure = receipt.cost.picoepsilon
    total = receipt.total_in(budget.currency, receipt.releases)
    return {
        "kind": "receipt",
        "number": receipt.sequence,
        "time_utc": _iso(receipt.time),
        "scope": "client" if receipt.client else "lineage",
        "name": receipt.client,
        "group": receipt.group,
        "blocks": " ".join(receipt.terms.blocks),
        "delta": None if budget is None else budget.delta,
        "client_receipt": receipt.number,
        "model": receipt.model,
        "mechanism": receipt.mechanism,
        "cost": str(receipt.cost),
        "price_rho": to_rho(receipt.price),
        "price_epsilon": None if pure is None else EPSILON.value(pure),
        "releases": receipt.releases,
        "total_rho": to_rho(receipt.total_in(RHO, receipt.releases)),
        "total_epsilon": None if budget is None or total is None else _amount(budget, total)["epsilon"],
        "group_releases": receipt.group_releases,
        "group_total_rho": to_rho(receipt.total_in(RHO, receipt.group_releases)),
        "lineage_releases": receipt.lineage_releases,
        "lineage_total_rho": to_rho(receipt.total_in(RHO, receipt.lineage_releases)),
        "service": receipt.service,
        "hash_sha256": receipt.hash.hex(),
    }


def _iso(time: float) -> str:
    try:
        return (_EPOCH + timedelta(seconds=time)).isoformat(timespec="microseconds")
    except OverflowError:  # a clock that was never set right
        return f"{time} s since 1970"


def _line(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False) + "\n"
