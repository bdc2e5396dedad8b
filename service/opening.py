"""What is verified before a service answers: the lineage has an account, and it can pay for what is served."""

import time
from dataclasses import replace

from accounting.budgets import Budget, accepts_for
from accounting.ledger import BudgetExhausted, CoinsExhausted, Ledger, LineageAccount, UnknownLineage
from accounting.picorho import to_rho
from mechanisms.mechanism import Mechanism
from service.errors import CannotServe
from service.pay_once import hold_request
from training.releases.certificate import ReleaseCertificate


async def open_lineage(ledger: Ledger, lineage: str, budget: Budget | None, *, by: str) -> LineageAccount:
    """See to it that the lineage has an account: open it with `budget`, or find it there. by: who starts the service.

    Raises CannotServe when there is none and no budget is given, or one with another budget: a budget is never
    changed by starting a service.
    """
    await ledger.join(lineage)  # before anything is opened: an emptied store must not pass for a new one
    try:
        account = await ledger.lineage(lineage)
    except UnknownLineage:
        if budget is None:
            raise CannotServe(
                f"the lineage {lineage} has no budget yet: say what all clients together may learn, "
                "with --epsilon E --delta D"
            ) from None
        starting = ledger.acting(by, "a service was started with this budget")
        account = await starting.open_lineage(lineage, budget, time=time.time())
    if budget is not None and replace(account.budget, refill=None) != budget:
        raise CannotServe(
            f"the lineage {lineage} has another budget already; leave --epsilon and --delta out, or change it "
            "with 'dpserve lineage set-budget'"
        )
    return account


def check_affordable(account: LineageAccount, mechanism: Mechanism) -> None:
    """Raise CannotServe if the lineage's account could never pay for one row."""
    if not account.budget.pays_for(mechanism.cost):
        raise CannotServe(
            f"the lineage {account.lineage} accepts {account.budget.accepts!r} charges only, and {mechanism.name!r} "
            f"costs {str(mechanism.cost)!r}: serve another mechanism, or change the lineage's budget to one that "
            f"--accepts {accepts_for(mechanism.cost)}"
        )
    if mechanism.cost.picorho > account.budget.picorho:
        raise CannotServe(
            f"one row costs rho = {float(mechanism.cost.rho):.6g}, more than the whole budget of the lineage, "
            f"{to_rho(account.budget.picorho):.6g}; choose a lower --price"
        )


async def hold_for_owner(ledger: Ledger, certificate: ReleaseCertificate, tier: str) -> int:
    """Charge the lineage for a tier of a release that leaves; return what was charged now, in picorho.

    Raises what `Ledger.charge` raises.
    """
    await ledger.join(certificate.lineage)
    return (await ledger.charge(hold_request(certificate, "", tier, time.time()))).charged


def too_dear(what: str, lineage: str, refused: BudgetExhausted, outcome: str) -> CannotServe:
    """Return the refusal of what the budget of a lineage does not pay for. outcome: what was not done."""
    return CannotServe(
        f"{what} costs rho = {to_rho(refused.cost):.6g}, and {to_rho(refused.remaining):.6g} is left of the budget of "
        f"the lineage {lineage}: {outcome}"
    )


async def check_release(ledger: Ledger, certificate: ReleaseCertificate) -> None:
    """Raise CannotServe unless the lineage's account could pay for every tier, and can pay for one now."""
    account = await ledger.lineage(certificate.lineage)
    budget, total = account.budget, 0
    for tier in certificate.tiers:
        total += tier.cost.picorho
        if not budget.pays_for(tier.cost):
            why = (
                "its delta is too small for releases that are Gaussian except with a small chance: take a larger one"
                if tier.cost.coins > budget.coins_allowed
                else f"it accepts {budget.accepts!r} charges only: change it to one that --accepts "
                f"{accepts_for(tier.cost)}"
            )
            raise CannotServe(f"the lineage {account.lineage} does not pay for {str(tier.cost)!r}: {why}")
        if total > budget.picorho:
            raise CannotServe(
                f"the tier {tier.name!r} costs rho = {to_rho(total):.6g}, and the whole budget of the lineage is "
                f"{to_rho(budget.picorho):.6g}: nobody could ever hold it. Train without it, or raise the budget with "
                "'dpserve lineage set-budget'"
            )
    first = await ledger.quote(hold_request(certificate, "", certificate.tiers[0].name, time.time()))
    if isinstance(first.refusal, CoinsExhausted):
        raise CannotServe(f"{first.refusal}: raise its delta with 'dpserve lineage set-budget'")
    if isinstance(first.refusal, BudgetExhausted):
        raise CannotServe(
            f"this model costs the lineage rho = {to_rho(first.refusal.cost):.6g}, and "
            f"{to_rho(first.refusal.remaining):.6g} of its budget is left; what is spent stays spent"
        )
