"""`dpserve demo --metered`: the papers' system once. Each answer is paid for, in pure epsilon, until none is left.

A certified head of scikit-learn's digits is served with the selected neuron, and attacked. Then the mechanism that Lu
et al. 2022 published is served beside it, and both are put to the same test.
"""

import asyncio
from itertools import count
from pathlib import Path
from secrets import token_hex

import numpy as np
from rich.console import Console

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import LineageAccount
from dpserve.commands.auditing import ModelsToTrain, report_on_pair
from dpserve.commands.console import shares
from dpserve.commands.demonstrated_digits import print_refusal, say_how_to_call, train_digits
from dpserve.commands.errors import CommandError
from dpserve.commands.reporting import stored
from dpserve.local_services import StartedService, own_services, start_service
from dpserve.training.bundles.sealing import DEFAULT_KIND
from dpserve.training.inputs.digits import Digits, load_digits
from dpserve.training.inputs.lineage import DIGITS
from dpserve.training.kinds.registry import kind_named

LAM = 10.0
PRICE = 0.5
CLIENTS = {"alice": 6.0, "bob": 1.0}
"""Budgets of the clients, in pure epsilon."""
DELTA = "1e-6"
AUDITOR_EPSILON = 38.0
"""At DELTA: it pays for 204 answers."""
LINEAGE_EPSILON = 40.0
"""At DELTA: what all of them together may learn. The attack needs so much; it protects hardly anybody."""
CANDIDATES, SHADOW_MODELS = 100, 8
PUBLISHED_PRICE = 0.1
TRIALS = 1000
SEED = 0


def show(console: Console, folder: Path, *, port: int, ledger: str | None, replicas: int, stay: bool) -> None:
    """Show it all. folder: an empty one, which goes afterwards. ledger: the URL of a store, or None for one of its
    own. replicas: of the store, on which a charge must be on disk, too.

    Raises CommandError where something else comes out than should.
    """
    digits = load_digits()
    # A store of somebody's own keeps what it is told, and may have a lineage of the digits.
    lineage = DIGITS if ledger is None else f"demo-{token_hex(4)}"
    _begin(console, 1, "train a certified head", f"dpserve train head --data digits --lam {LAM:g} --out metered")
    bundle = train_digits(console, digits, folder, kind_named(DEFAULT_KIND).options(lam=LAM), lineage)
    options = ["--mechanism", "selected-neuron", "--price", f"epsilon:{PRICE:g}"]
    options += ["--epsilon", f"{LINEAGE_EPSILON:g}", "--delta", DELTA]
    _begin(console, 2, "serve it with the selected neuron", " ".join(["dpserve serve metered", *options]))
    with start_service(bundle, folder, options, port=port, quiet=not stay, ledger=ledger, replicas=replicas) as service:
        _say(console, f"An answer costs epsilon = {PRICE:g}, pure. The attack needs all that the lineage may spend.")
        budgets = [f"dpserve clients add {name} --epsilon {epsilon:g} --delta 0" for name, epsilon in CLIENTS.items()]
        _begin(console, 3, "give two clients budgets in pure epsilon", *budgets)
        keys = [service.add_client(lineage, name, Budget.pure(epsilon)) for name, epsilon in CLIENTS.items()]
        if stay:
            say_how_to_call(console, service, keys[0], digits, folder, next(iter(CLIENTS)))
            return
        called = [
            f"curl -H 'Authorization: Bearer KEY' {service.address}/{name}" for name in ("predict -d ...", "budget")
        ]
        _begin(console, 4, "ask until epsilon runs out", *called)
        for name, key in zip(CLIENTS, keys, strict=True):
            _ask_until_refused(console, service, name, key, digits)
        _say_what_the_lineage_paid(console, asyncio.run(_account(service, lineage)))
        _attack(console, service, lineage)
    if ledger is not None:
        _say(console, f"The ledger keeps the lineage {lineage}, with its clients and receipts.")
    _compare(console)


def _begin(console: Console, number: int, what: str, *commands: str) -> None:
    console.print(f"\n{number}. {what[:1].upper()}{what[1:]}", style="bold", highlight=False)
    for command in commands:
        console.print(f"$ {command}", style="dim", highlight=False, markup=False, soft_wrap=True)


def _say(console: Console, sentences: str) -> None:
    console.print(sentences, highlight=False, markup=False)


def _ask_until_refused(console: Console, service: StartedService, name: str, key: str, digits: Digits) -> None:
    """Ask about one digit after the other, and after each for what is left."""
    from dpserve.client import BudgetExhausted, Client

    limit, right = CLIENTS[name], 0
    with Client(service.address, key) as client:
        for asked in count():
            digit, turn = asked % 10, asked // 10
            row = digits.held_out_rows[np.flatnonzero(digits.held_out_labels == digit)[turn]]
            try:
                (answer,) = client.predict([row])
            except BudgetExhausted as refusal:
                console.print(f"{name}, {right} of {asked} right, is refused:", style="bold", highlight=False)
                print_refusal(console, refusal)
                break
            budget = client.budget()
            right += answer == str(digit)
            _say(
                console,
                f"{name} asks about a {digit}: {answer}; spent epsilon = {budget['spent']['epsilon']:g} of "
                f"{budget['limit']['epsilon']:g}, {budget['queries_left']} more to ask",
            )
    if asked != round(limit / PRICE):
        raise CommandError(f"epsilon = {limit:g} paid for {asked} answers at {PRICE:g}")


async def _account(service: StartedService, lineage: str) -> LineageAccount:
    async with service.ledger() as ledger:
        return await ledger.lineage(lineage)


def _say_what_the_lineage_paid(console: Console, account: LineageAccount) -> None:
    answers = sum(account.tally.values())
    _say(
        console,
        f"One question has one answer. Each paid for its own; the lineage paid for {answers}, which is all that "
        "the two know together.",
    )


def _attack(console: Console, service: StartedService, lineage: str) -> None:
    """Attack the service as a client with a budget of its own."""
    from dpserve.audit import presentation
    from dpserve.audit.membership.attack import Attack, AttackChoices
    from dpserve.audit.membership.candidates import digits
    from dpserve.endpoint import ServiceEndpoint

    _begin(
        console,
        5,
        "attack it: who was trained on?",
        f"dpserve clients add auditor --epsilon {AUDITOR_EPSILON:g} --delta {DELTA} > auditor.key",
        f"dpserve attack {service.address} --data digits --key-file auditor.key --candidates {CANDIDATES} "
        f"--shadow-models {SHADOW_MODELS}",
    )
    budget = Budget.from_epsilon_delta(AUDITOR_EPSILON, float(DELTA), "any")
    key = service.add_client(lineage, "auditor", budget)
    choices = AttackChoices(shadow_models=SHADOW_MODELS, most=CANDIDATES, seed=SEED)
    with ServiceEndpoint(service.address, key) as endpoint, shares("attack") as progress:
        report = presentation.attack_report(Attack([endpoint], digits(), choices, progress=progress).run())
    _say(console, report.verdict)
    if report.exit_status:
        raise CommandError("the attack was to find nothing against the selected neuron's claim")
    _say(
        console,
        "An attack that finds nothing proves nothing: the proof is the certificate's. Chance would convict with "
        "probability below 1e-6, if the true TPR - FPR is at most 0.05.",
    )


def _compare(console: Console) -> None:
    """Put the published mechanism and the selected neuron to one test, at one price."""
    price = f"epsilon:{PUBLISHED_PRICE:g}"
    _begin(
        console,
        6,
        "serve the published mechanism with --accept-unproven, and test its claim",
        f"dpserve audit service --mechanism published --price {price} --trials {TRIALS}",
    )
    _say(
        console,
        f"Two heads, trained with and without one record, are served and asked {TRIALS:,} times each. Who chose all "
        "other records tries to tell whether that one was used.",
    )
    for mechanism, refuted in (("published", True), ("selected-neuron", False)):
        rng = np.random.default_rng(SEED)
        kind = ModelsToTrain().kind
        with own_services(kind, mechanism, price, LAM, TRIALS, rng) as pair, stored(None) as store:
            report = report_on_pair(pair, TRIALS, SEED, rng, store)
        _say(console, f"{mechanism}: {report.verdict}")
        if report.convicted != refuted:
            raise CommandError(f"the claim of {mechanism!r} was{' not' if refuted else ''} to be refuted")
    _say(
        console,
        "A claim that holds is convicted once in 1e9 times at most. Algorithm 1 of Lu et al. 2022 adds noise to one "
        "logit of ten, and the differences of the others give the record away.",
    )
