"""Times of accounting: pricing a request, reporting an account, explaining a million releases, planning.

Each figure is the median over rounds on one core, after a first call that warms caches as a running service's are;
`explain` is also timed without them. Run: python benchmarks/accounting_speed.py [--rounds 7]
"""

import argparse
import statistics
import time
from collections.abc import Callable

from dpserve.accounting import explanation, report
from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import ChargeRequest
from dpserve.accounting.ledger.receipts import charge_terms
from dpserve.accounting.losses import Cost
from dpserve.accounting.remembered import forget_all
from dpserve.mechanisms.registry import priced

DELTA = 1e-6
RELEASES = 10**6
ROW = b"\0" * 64


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    for what, seconds in measured(rounds).items():
        print(f"{what:<58} {_readable(seconds)}")


def measured(rounds: int) -> dict[str, float]:
    """Return seconds for one call of each."""
    mechanism = priced("gaussian", "noise-multiplier:20", 10)
    cost = mechanism.cost
    budget = Budget.from_epsilon_delta(5, DELTA, "gaussian")
    whole = Budget.from_rho(1000, 1e-3, "gaussian")
    return {
        "price a request": _median(lambda: charge_terms(cost).price * 10, rounds, 20_000),
        "build and price a request": _median(lambda: _request(cost).terms.price, rounds, 20_000),
        "report an account whose state is new": _median(lambda: _report(budget, cost), rounds, 20),
        f"explain {RELEASES:,} Gaussian releases": _median(lambda: _explain("gaussian:1000"), rounds, 3),
        f"explain {RELEASES:,} Laplace releases": _median(lambda: _explain("laplace:10000"), rounds, 3),
        f"explain {RELEASES:,} selections": _median(lambda: _explain("exponential:0.0001"), rounds, 3),
        f"explain an account of {RELEASES:,} Gaussian releases": _median(
            lambda: _account(whole, explanation.parse_release("gaussian:1000")), rounds, 3
        ),
        "explain 1,000 Laplace releases (numerical PLD)": _median(
            lambda: explanation.explain({explanation.parse_release("laplace:100"): 1000}, DELTA), rounds, 1
        ),
    }


def _request(cost: Cost) -> ChargeRequest:
    return ChargeRequest("digits", "alice", charge_terms("m", "gaussian", cost), (ROW,), 0.0)


def _report(budget: Budget, price: Cost) -> report.AccountReport:
    forget_all()
    return report.account_report(report.AccountState.after_releases({price: 17}, budget), price=price)


def _explain(release: str) -> explanation.Explanation:
    forget_all()
    return explanation.explain({explanation.parse_release(release): RELEASES}, DELTA)


def _account(budget: Budget, cost: Cost) -> explanation.AccountExplanation:
    forget_all()
    return explanation.explain_account(report.AccountState.after_releases({cost: RELEASES}, budget), price=cost)


def _median(call: Callable[[], object], rounds: int, repeats: int) -> float:
    call()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        seconds.append((time.perf_counter() - start) / repeats)
    return statistics.median(seconds)


def _readable(seconds: float) -> str:
    return f"{seconds * 1e6:8.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:8.2f} ms"


if __name__ == "__main__":
    main()
