"""`dpserve demo --metered`: the papers' system once. Each answer is paid for until none is left.

A certified head of scikit-learn's digits is served with the selected neuron, with Laplace and with Gaussian noise, and
attacked beside a model without privacy. Then what Lu et al. 2022 published is put to the same tests.
"""

import asyncio
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import cast

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
from dpserve.mechanisms.gaussian_vector import picorho_for
from dpserve.mechanisms.mechanism import Law
from dpserve.training.bundles.sealing import DEFAULT_KIND
from dpserve.training.exact.questions import MeteredModel
from dpserve.training.feature_choice import AutoFeatures
from dpserve.training.fit import Request
from dpserve.training.inputs.digits import Digits, load_digits
from dpserve.training.inputs.lineage import DIGITS
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.registry import kind_named
from dpserve.training.pay_once.model import ReleasedModel

LAM = 10.0
PRICE = 0.5
DELTA = 1e-6
PURE, AT_DELTA = f"epsilon:{PRICE:g}", f"epsilon:{PRICE:g}@1e-6"
"""The price of an answer with Laplace noise, and with Gaussian noise."""
SERVED = ("--mechanism", "selected-neuron", "--selection", "exponential")
CLIENTS = {"alice": 6.0, "bob": 1.0}
"""Budgets of the clients, in pure epsilon."""
CAROL = 6.0
"""The budget of the client of answers with Gaussian noise, at DELTA."""
AUDITOR, LINEAGE = 31.0, 34.0
"""At DELTA: the attack's budget, and what all clients together may learn."""
CANDIDATES, SHADOW_MODELS = 100, 8
PUBLISHED_PRICE = 0.1
TRIALS, EPOCHS = 1000, 20
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
    bundle = train_digits(console, digits, folder / "metered", kind_named(DEFAULT_KIND).options(lam=LAM), lineage)
    budget = ("--epsilon", f"{LINEAGE:g}", "--delta", "1e-6")
    started = partial(start_service, bundle, folder, port=port, quiet=not stay, ledger=ledger, replicas=replicas)
    laplace = (*SERVED, "--price", PURE, *budget)
    _begin(
        console, 2, "serve it: exponential mechanism and Laplace noise", " ".join(["dpserve serve metered", *laplace])
    )
    with started(laplace) as service:
        _say(
            console,
            f"An answer costs epsilon = {PRICE:g}, pure: half for the selected neuron, half for the noise on its "
            f"log-odds. Epsilon = {LINEAGE:g} for all clients protects hardly anybody: only the attack below needs it.",
        )
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
            asked = _ask_until_refused(console, service, name, key, digits)
            if asked != round(CLIENTS[name] / PRICE):
                raise CommandError(f"epsilon = {CLIENTS[name]:g} paid for {asked} answers at {PRICE:g}")
        _say_what_the_lineage_paid(console, asyncio.run(_account(service, lineage)))
    _say_what_was_bought(console, digits, folder, bundle)
    gaussian = (*SERVED, "--price", AT_DELTA, *budget)
    _begin(
        console,
        5,
        "serve it: exponential mechanism and Gaussian noise",
        " ".join(["dpserve serve metered", *gaussian]),
        f"dpserve clients add carol --epsilon {CAROL:g} --delta 1e-6",
    )
    with started(gaussian) as service:
        key = service.add_client(lineage, "carol", Budget.from_epsilon_delta(CAROL, DELTA, "any"))
        _ask_until_refused(console, service, "carol", key, digits, every=20)
    with started(laplace) as service:
        _attack(console, service, lineage, digits)
    if ledger is not None:
        _say(console, f"The ledger keeps the lineage {lineage}, with its clients and receipts.")
    _convict_algorithm_1(console)
    _convict_the_network(console, digits, folder)


def _begin(console: Console, number: int, what: str, *commands: str) -> None:
    console.print(f"\n{number}. {what[:1].upper()}{what[1:]}", style="bold", highlight=False)
    for command in commands:
        console.print(f"$ {command}", style="dim", highlight=False, markup=False, soft_wrap=True)


def _say(console: Console, sentences: str) -> None:
    console.print(sentences, highlight=False, markup=False)


def _ask_until_refused(
    console: Console, service: StartedService, name: str, key: str, digits: Digits, *, every: int = 1
) -> int:
    """Ask about one digit after the other, and after each for what is left. Return how many were answered.

    every: prints the first of so many answers.
    """
    from dpserve.client import BudgetExhausted, Client

    right = 0
    with Client(service.address, key) as client:
        for asked in count():
            digit, turn = asked % 10, asked // 10
            row = digits.held_out_rows[np.flatnonzero(digits.held_out_labels == digit)[turn]]
            try:
                (answer,) = client.predict([row])
            except BudgetExhausted as refusal:
                console.print(f"{name}, {right} of {asked} right, is refused:", style="bold", highlight=False)
                print_refusal(console, refusal)
                return asked
            right += answer == str(digit)
            if asked % every == 0:
                budget = client.budget()
                _say(console, f"{name} asks about a {digit}: {answer}; {budget['queries_left']} more to ask")
    raise CommandError("the questions ended before the budget")


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


def _say_what_was_bought(console: Console, digits: Digits, folder: Path, bundle: Path) -> None:
    """Print how right the head is without noise, and a pay-once model of alice's epsilon: the digits are public."""
    head, epsilon = cast(MeteredModel, load_model(bundle)), CLIENTS["alice"]
    rows, labels = digits.held_out_rows, digits.held_out_labels
    alone = np.mean(head.logits(head.features(rows)).argmax(axis=1) == labels)
    released = train_digits(
        None, digits, folder / "paid-once", kind_named("dpsgd").options(), DIGITS, picorho_for(epsilon, DELTA)
    )
    answers = cast(ReleasedModel, load_model(released)).values(rows)
    once = np.mean(answers.argmax(axis=1) == labels)
    _say(
        console,
        f"Why so few are right: without noise the head is right on {alone:.3f} of the held-out digits, but epsilon = "
        f"{PRICE / 2:g} hardly tells the best of ten classes from the others. For epsilon = {epsilon:g} at delta = "
        f"{DELTA:g}, paid once, a model is right on {once:.3f}, for any number of questions.",
    )


def _attack(console: Console, service: StartedService, lineage: str, digits: Digits) -> None:
    """Attack an unprotected forest, where an attack finds something, and the service with a budget of its own."""
    from sklearn.ensemble import RandomForestClassifier

    from dpserve.audit import presentation
    from dpserve.audit.leakage_report import leakage_report
    from dpserve.audit.membership.attack import Attack, AttackChoices
    from dpserve.audit.membership.candidates import digits as candidates
    from dpserve.audit.membership.leakage import measure_leakage
    from dpserve.endpoint import ServiceEndpoint

    _begin(
        console,
        6,
        "attack it: who was trained on?",
        f"dpserve clients add auditor --epsilon {AUDITOR:g} --delta 1e-6 > auditor.key",
        f"dpserve attack {service.address} --data digits --key-file auditor.key --candidates {CANDIDATES} "
        f"--shadow-models {SHADOW_MODELS}",
    )
    forest = RandomForestClassifier(random_state=SEED).fit(digits.train.X, digits.train.y)
    with shares("a forest") as progress:
        leakage = measure_leakage(
            forest.predict_proba, candidates(), most=CANDIDATES, seed=SEED, confidence=0.95, progress=progress
        )
    _say(console, f"A forest of the same digits without privacy: {leakage_report(leakage, 'a forest').finding}.")
    if leakage.pairs.epsilon <= 0:
        raise CommandError("the attack was to find who was trained on, where nothing protects them")
    key = service.add_client(lineage, "auditor", Budget.from_epsilon_delta(AUDITOR, DELTA, "any"))
    choices = AttackChoices(shadow_models=SHADOW_MODELS, most=CANDIDATES, seed=SEED)
    with ServiceEndpoint(service.address, key) as endpoint, shares("attack") as progress:
        outcome = Attack([endpoint], candidates(), choices, progress=progress).run()
    report = presentation.attack_report(outcome)
    _say(console, f"The service, {sum(outcome.charges.rows)} answers: {report.verdict}")
    if report.exit_status:
        raise CommandError("the attack was to find nothing against the selected neuron's claim")
    _say(
        console,
        "An attack that finds nothing proves nothing: the proof is the certificate's. Chance would convict with "
        "probability below 1e-6, if the true TPR - FPR is at most 0.05.",
    )


def _convict_algorithm_1(console: Console) -> None:
    """Put the published mechanism and the selected neuron to one test, at one price."""
    price = f"epsilon:{PUBLISHED_PRICE:g}"
    _begin(
        console,
        7,
        "test the claim of the published mechanism",
        f"dpserve audit service --mechanism published --price {price} --trials {TRIALS}",
    )
    _say(
        console,
        f"Two heads, trained with and without one record, are served and asked {TRIALS:,} times each. Who chose all "
        "other records tries to tell whether that one was used.",
    )
    tested: tuple[tuple[str, Law | None, bool], ...] = (
        ("published", None, True),
        ("selected-neuron", "exponential", False),
    )
    for mechanism, selection, refuted in tested:
        rng = np.random.default_rng(SEED)
        kind = ModelsToTrain().kind
        with own_services(kind, mechanism, price, LAM, TRIALS, rng, selection) as pair, stored(None) as store:
            report = report_on_pair(pair, TRIALS, SEED, rng, store)
        _say(console, f"{mechanism}: {report.verdict}")
        if report.convicted != refuted:
            raise CommandError(f"the claim of {mechanism!r} was{'' if refuted else ' not'} to be refuted")
    _say(
        console,
        "A claim that holds is convicted once in 1e9 times at most. Algorithm 1 of Lu et al. 2022 adds noise to one "
        "logit of ten, and the differences of the others give the record away.",
    )


def _convict_the_network(console: Console, digits: Digits, folder: Path) -> None:
    """Train the papers' network with and without one record, and compare how far it moves with Eq. 18."""
    from dpserve.audit import presentation
    from dpserve.audit.replay import audit_training, known_before, trained_by
    from dpserve.audit.reports import print_text

    _begin(
        console,
        8,
        "test the sensitivities of the papers' network",
        f"dpserve audit training published --data digits --epochs {EPOCHS} --trials 1",
    )
    if find_spec("torch") is None:
        _say(console, "This step needs PyTorch: pip install 'dpserve[torch]'.")
        return
    request = Request(
        name="audited",
        lineage="audited",
        kind=kind_named("published").options(epochs=EPOCHS),
        price=None,
        n=None,
        features=AutoFeatures(),
    )
    with shares("with and without a record"):
        train = trained_by(request, folder, known_before(digits.train))
        replayed = audit_training(train, digits.train, 1)
    report = presentation.replay_report(replayed, 1, None)
    print_text(report, console)
    if not report.convicted:
        raise CommandError("the network was to move by more than its equations claim")
