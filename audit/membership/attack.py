"""The whole attack: plan, ask, train shadow models, score every candidate in every way, judge.

Every score of a candidate uses the endpoint's answers to that candidate's row (and its near-copies) and nothing else of
the endpoint's: shadow models know nothing of it. So one score has seen as many releases as the candidate was asked
about, and a decision is compared with what those cost. Where the model protects privacy units, candidates are units,
asked about with all of their rows.

Thresholds do know of it: those of every score and of the lower bound of epsilon are chosen on the scores of the
first quarter of the candidates, and so is the attack that counts. Decisions are counted on the others, for which such a
threshold is taken as fixed. It was not chosen without the model, though, and what it might tell about the records
decided on is not charged for. That, and that decisions of one model depend on each other, is why the confidence is
called nominal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats, Integers, Mask
from dpserve.accounting.losses import Cost
from dpserve.audit.endpoint import Endpoint, EndpointError
from dpserve.audit.membership.asking import Answered, AnswerJournal, ask
from dpserve.audit.membership.candidates import Candidates, Difference, Labelled, as_asked, difference
from dpserve.audit.membership.charges import Charges, Replays, ask_again, charges_of, overdraw
from dpserve.audit.membership.claims import (
    STEPS,
    ClaimedReleases,
    claim_of_accounts,
    claim_of_releases,
    failure_of,
    what_is_protected,
)
from dpserve.audit.membership.exposure import Exposure, OwnNull, exposure, own_null
from dpserve.audit.membership.near_copies import NearCopies, near_copies_to_ask
from dpserve.audit.membership.own_law import own_law_ratio
from dpserve.audit.membership.plan import NOISE_SHARE, QueryPlan, largest_epsilon, make_plan, rows_of_keys
from dpserve.audit.membership.scoring import Scores, average_answers, of_candidates, scaled_confidence, scores_of
from dpserve.audit.membership.shadow_models import (
    Draws,
    Pool,
    ShadowModels,
    ShadowSetup,
    TrainShadows,
    check_trainable,
    shadow_setup_of,
    train_shadow_models,
)
from dpserve.audit.membership.verdict import Verdict, verdict
from dpserve.audit.noise import NoiseFinding
from dpserve.audit.progress import OnStage
from dpserve.training.devices import Device


@dataclass(frozen=True)
class AttackChoices:
    """An attacker's choices. shadow_records: of each shadow model; None for as many as there are members.

    copies: rows asked about for each of a candidate's rows, the first one itself, the others next to it. most: at
    most so many candidates of each kind. rows_of_each: at most so many rows of a unit. shadow_epochs: of shadow
    models that are networks, if not the published ones.
    """

    shadow_models: int = 20
    shadow_records: int | None = None
    confidence: float = 0.95
    copies: int = 1
    most: int | None = None
    rows_of_each: int | None = None
    seed: int = 0
    shadow_epochs: int | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """Everything that came of an attack.

    shadow_records: of each shadow model, out of `pool` records or units. shadow_device: where they were trained.
    decided: members and others that were decided about. noise: what answers to near-copies of a row show, which no
    decision saw. releases: answers that a decision saw at most. accounts: `GET /budget` of every key, after the attack.
    exhausted: whose budgets ran out. cautions: what makes the attack weaker, or less even, than it could be.
    """

    model: Mapping[str, Any]
    choices: AttackChoices
    plan: QueryPlan
    verdict: Verdict
    exposure: Exposure
    difference: Difference
    decided: tuple[int, int]
    releases: int
    exhausted: tuple[str, ...]
    replays: Replays
    charges: Charges
    noise: NoiseFinding
    accounts: tuple[Mapping[str, Any], ...]
    shadow_records: int
    pool: int
    shadow_device: Device
    cautions: tuple[str, ...] = ()

    @property
    def convicted(self) -> bool:
        """Whether anything convicts."""
        return bool(self.convictions)

    @property
    def convictions(self) -> tuple[str, ...]:
        """The tests that convict, by name.

        Bounds convict only where nothing contradicts their premise, that candidates are exchangeable
        (`dpserve.audit.membership.claims`). Replays, charges and the noise of near-copies compare no members with
        others and convict without it.
        """
        convictions = []
        if self.replays.averaging_is_free:
            convictions.append("noise that can be averaged at no cost")
        if self.charges.faults:
            convictions.append("answers that were not paid for")
        if self.noise_is_missing:
            convictions.append(self.noise.strongest)
        if not self.difference.distinguishable:
            convictions += self.verdict.convictions
        return tuple(convictions)

    @property
    def noise_is_missing(self) -> bool:
        """Whether answers to near-copies refute that the noise is what the price promises."""
        return self.noise.p_value <= NOISE_SHARE * (1 - self.choices.confidence)

    @property
    def inconclusive(self) -> bool:
        """Whether members and others differ by themselves or overlap, so that the scores say nothing of the claim."""
        return self.difference.uninformative and not self.convicted


@dataclass(frozen=True, eq=False)
class _Shadows:
    """The plan for shadow models. departures: in what they differ from the target, in sentences."""

    setup: ShadowSetup
    draws: Draws
    departures: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Asking:
    """The questions of an attack, and the answers."""

    model: Mapping[str, Any]
    near: NearCopies
    """Near-copies of one row, not asked about yet."""
    journal: AnswerJournal
    plan: QueryPlan
    rows: Floats
    """(keys, n, d), as asked."""
    answered: Answered
    records: Labelled
    """Rows that were answered about, m in all, of members and others in turn."""
    member: Mask
    """(m,): whether a row is a member's."""
    places: Integers
    """(m,): each row's place in its file."""
    answers: Floats
    """(keys * copies, m, C), NaN where one is missing."""
    pool: Labelled
    """The same rows, and behind them all others of the distribution."""
    before: Sequence[Mapping[str, Any]]
    """Every key's `GET /budget` before the attack."""
    rows_before: Sequence[int]
    """The number of rows that each key had asked about before."""
    replays: Replays
    overdraws: Sequence[bool | None]

    @property
    def decided(self) -> tuple[int, int]:
        """The numbers of members and of others that were answered about."""
        return self.records[self.member].count, self.records[~self.member].count

    @property
    def most_answers(self) -> int:
        """The most answers about one row."""
        return int(self._answers_of_rows.max())

    @property
    def answers_of_each(self) -> NDArray[np.int64]:
        """The answers about each candidate. No row of a unit is another's or comes twice: they are as many releases."""
        return np.bincount(self.records.of, self._answers_of_rows).astype(np.int64)

    @property
    def _answers_of_rows(self) -> NDArray[np.int64]:
        return np.asarray((~np.isnan(self.answers[:, :, 0])).sum(axis=0))


@dataclass(eq=False)
class Attack:
    """An attack on the endpoint behind one or more keys. train: how shadow models are trained."""

    endpoints: Sequence[Endpoint]
    candidates: Candidates
    choices: AttackChoices = field(default_factory=AttackChoices)
    journal: Path | None = None
    train: TrainShadows = train_shadow_models
    progress: OnStage = lambda _, __: None
    on_plan: Callable[[QueryPlan], None] = lambda _: None

    def run(self) -> Outcome:
        """Attack. Running out of budget is part of the outcome.

        Raises EndpointError where the endpoint fails, and ValueError for records that do not fit the model or are too
        few for the confidence.
        """
        model = _one_model(self.endpoints)
        _check_classes(model)
        self.candidates.check(model)
        candidates = self.candidates.as_asked(model)
        shadows = _shadows_of(model, candidates, self.choices)
        self.progress("comparing members with non-members", 0.0)
        distinguishable = difference(candidates.members, candidates.others, self.choices.seed)
        asking = self._ask(model, candidates)
        trained = self._shadow(asking, shadows)
        scores, own = self._score(asking, shadows, trained)
        return self._judge(asking, shadows, trained, scores, own, distinguishable)

    def _purpose(self, candidates: Candidates) -> Mapping[str, Any]:
        """The inputs, besides the model and the keys, that determine this attack's rows and answers."""
        return {
            "records": candidates.digest(),
            "seed": self.choices.seed,
            "copies": self.choices.copies,
            "candidates": self.choices.most,
        } | ({} if self.choices.rows_of_each is None else {"rows": self.choices.rows_of_each})

    def _ask(self, model: Mapping[str, Any], candidates: Candidates) -> _Asking:
        """Plan by what is left of the budgets, and ask about the candidates until these, or the budgets, end."""
        choices, endpoints = self.choices, self.endpoints
        names = [endpoint.name() for endpoint in endpoints]
        journal = AnswerJournal(self.journal, model, names, self._purpose(candidates))
        near = near_copies_to_ask(endpoints[0], model, journal, choices.seed)
        before = [endpoint.budget() for endpoint in endpoints]
        plan, rows_before = self._plan(candidates, journal, near, before)
        journal.settle(plan.of_each)
        self.on_plan(plan)
        records, member, places = _in_turn(candidates, plan)
        rows = rows_of_keys(records.X, plan.copies, model, choices.seed, names)
        rows = as_asked(model, rows.reshape(-1, rows.shape[-1])).reshape(rows.shape)
        answered = ask(endpoints, rows, journal, on_rows=self._on_rows(rows[..., 0].size))
        keys, rows_of_each, classes = answered.answers.shape
        by_copy = answered.answers.reshape(keys, rows_of_each // choices.copies, choices.copies, classes)
        by_row = by_copy.transpose(0, 2, 1, 3).reshape(keys * choices.copies, -1, classes)
        usable = ~np.isnan(by_row[:, :, 0]).all(axis=0)
        decided = records[usable & member].count, records[usable & ~member].count
        _check_enough(decided, choices.confidence, answered.exhausted)
        # Candidates without an answer are data of the same distribution like any other.
        pool = records[usable]
        for more in (records[~usable], *_left_out(candidates, plan), candidates.population):
            pool = pool if more is None or len(more) == 0 else pool + more
        # Repeat the first row that was answered, with the key that it was answered to.
        key, row = (int(place) for place in np.argwhere(~np.isnan(answered.answers[:, :, 0]))[0])
        return _Asking(
            model=model,
            near=near,
            journal=journal,
            plan=plan,
            rows=rows,
            answered=answered,
            records=records[usable],
            member=member[usable],
            places=places[usable],
            answers=by_row[:, usable],
            pool=pool,
            before=before,
            rows_before=rows_before,
            replays=ask_again(endpoints[key], rows[key, row], answered.answers[key, row]),
            overdraws=[overdraw(endpoint) for endpoint in endpoints],
        )

    def _plan(
        self, candidates: Candidates, journal: AnswerJournal, near: NearCopies, before: Sequence[Mapping[str, Any]]
    ) -> tuple[QueryPlan, Sequence[int]]:
        """Return whom to ask about, and how many rows each key had asked about before."""
        choices, endpoints = self.choices, self.endpoints
        reserved = near.unanswered(journal) if endpoints[0].account_lasts else near.count
        rows_before = [journal.count(key) if endpoint.account_lasts else 0 for key, endpoint in enumerate(endpoints)]
        if rows_before[0]:
            rows_before[0] -= near.count - reserved
        plan = make_plan(
            candidates.members,
            candidates.others,
            before,
            copies=choices.copies,
            confidence=choices.confidence,
            seed=choices.seed,
            most=choices.most,
            rows_of_each=choices.rows_of_each,
            answered=rows_before,
            settled=journal.planned,
            reserved=reserved,
        )
        return plan, rows_before

    def _on_rows(self, total: int) -> Callable[[int], None]:
        done = 0

        def on_rows(count: int) -> None:
            nonlocal done
            done += count
            self.progress(f"asking, {done} of {total} rows", done / total)

        return on_rows

    def _shadow(self, asking: _Asking, shadows: _Shadows) -> ShadowModels:
        """Train shadow models on draws from the pool."""
        pool, draws = asking.pool, shadows.draws
        stage = f"training {draws.count} shadow models of {draws.records} {what_is_protected(asking.model)}s"
        inputs = Pool(shadows.setup.inputs(pool.X), pool.y, None if pool.units is None else pool.of)
        return self.train(inputs, shadows.setup.recipe, draws, lambda share: self.progress(stage, share))

    def _score(self, asking: _Asking, shadows: _Shadows, trained: ShadowModels) -> tuple[list[Scores], OwnNull]:
        """Score every candidate in every way, and compare each with its own null."""
        setup, records, rows = shadows.setup, asking.records, slice(len(asking.records))
        inputs, logits, members = setup.inputs(records.X), trained.logits[:, rows], trained.members[:, rows]
        law = None
        if setup.mechanism is not None:
            sensitivities = setup.sensitivities(inputs)
            law = own_law_ratio(setup.mechanism, sensitivities, asking.answers, logits, records.y, members)
        answers = average_answers(asking.answers)
        shadow = setup.answers(logits, inputs, shadows.draws.seed, asking.most_answers)
        seed = self.choices.seed
        scores = scores_of(answers, records.y, asking.member, shadow, members, seed, of=records.of, own_law=law)
        counts = np.bincount(records.of)
        confidences = np.stack(
            [np.bincount(records.of, scaled_confidence(each, records.y)) / counts for each in (answers, *shadow)]
        )
        first = np.unique(records.of, return_index=True)[1]
        return scores, own_null(confidences[0], confidences[1:], members[:, first], normal=setup.nearly_normal)

    def _judge(
        self,
        asking: _Asking,
        shadows: _Shadows,
        trained: ShadowModels,
        scores: list[Scores],
        own: OwnNull,
        distinguishable: Difference,
    ) -> Outcome:
        """Compare the scores' decisions with what answers cost, and ask about near-copies."""
        choices, model, answers_of_each = self.choices, asking.model, asking.answers_of_each
        accounts = tuple(endpoint.budget() for endpoint in self.endpoints)
        charges = charges_of(
            model, asking.rows, asking.answered, asking.before, accounts, asking.rows_before, asking.overdraws
        )
        releases = int(answers_of_each.max())
        decision, total = _claims(model, accounts, releases)
        # Last, so that they are no part of what is charged and claimed for decisions.
        self.progress("asking about near-copies of one row", 0.0)
        noise = asking.near.ask(self.endpoints[0], asking.journal)
        judged = verdict(scores, decision, total, choices.confidence, choices.seed)
        return Outcome(
            model=model,
            choices=choices,
            plan=asking.plan,
            verdict=judged,
            exposure=_exposure(asking, judged, own, choices.seed),
            difference=distinguishable,
            decided=asking.decided,
            releases=releases,
            exhausted=asking.answered.exhausted,
            replays=asking.replays,
            charges=charges,
            noise=noise,
            accounts=accounts,
            shadow_records=shadows.draws.records,
            pool=asking.pool.count,
            shadow_device=trained.device,
            cautions=shadows.departures + charges.cautions + _unevenness(asking.plan, asking.decided, answers_of_each),
        )


def _exposure(asking: _Asking, judged: Verdict, own: OwnNull, seed: int) -> Exposure:
    of, first = asking.records.of, np.unique(asking.records.of, return_index=True)[1]
    return exposure(
        asking.member,
        asking.places,
        of_candidates(judged.best.scores, asking.member[first], seed),
        own,
        judged.confidence,
        "the chance that a model not trained on the record is as sure of it, beside the shadow models without it, "
        f"{own.compared.min()} to {own.compared.max()}",
        lambda rates: judged.decision.power(rates, STEPS),
        of=of,
    )


def _shadows_of(model: Mapping[str, Any], candidates: Candidates, choices: AttackChoices) -> _Shadows:
    """Choose shadow models by the public certificate and the number of records: before an answer is paid for.

    The sentences say in what they differ from the target. Raises ValueError where the model cannot be mimicked or there
    are too few records.
    """
    members, everyone, candidate = candidates.members.count, candidates.everyone.count, what_is_protected(model)
    count = choices.shadow_records or min(members, everyone // 2)
    setup = shadow_setup_of(model, count, epochs=choices.shadow_epochs)
    check_trainable(setup.recipe)
    draws = Draws(choices.shadow_models, count, choices.seed)
    draws.rows(everyone)
    departures = setup.departures
    if count != members:
        departures += (
            f"shadow models have {count} {candidate}s, and {members} members are named: if the target was trained on "
            f"another number than {count}, at the same regularisation and noise, thresholds that they teach may be off "
            "(more data of the population, or another number of shadow records)",
        )
    return _Shadows(setup, draws, departures)


def _one_model(endpoints: Sequence[Endpoint]) -> Mapping[str, Any]:
    models = [endpoint.model() for endpoint in endpoints]
    if any(model.get("model_id") != models[0].get("model_id") for model in models):
        raise EndpointError("the keys are of different models: pool keys of one service only")
    return models[0]


def _in_turn(candidates: Candidates, plan: QueryPlan) -> tuple[Labelled, Mask, Integers]:
    """A member, another, a member, ...: whenever the budget runs out, as many of both were asked about.

    With them: which rows are members', and each row's place in its file.
    """
    both = candidates.members[plan.members], candidates.others[plan.others]
    turns = [np.cumsum(np.diff(records.of, prepend=records.of[:1]) != 0) for records in both]
    order = np.argsort(np.concatenate([2 * turns[0], 2 * turns[1] + 1]), kind="stable")
    places = np.concatenate([plan.members, plan.others])[order]
    return (both[0] + both[1])[order], order < len(both[0]), places


def _left_out(candidates: Candidates, plan: QueryPlan) -> list[Labelled]:
    """Return the candidates that the plan left out."""
    return [
        records[np.setdiff1d(np.arange(len(records)), rows)]
        for records, rows in ((candidates.members, plan.members), (candidates.others, plan.others))
    ]


def _unevenness(plan: QueryPlan, decided: tuple[int, int], seen: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the warnings for answers that stopped before the plan did."""
    findings = []
    if decided != (plan.of_each, plan.of_each):
        findings.append(
            f"{plan.of_each} members and {plan.of_each} non-members were to be asked about; {decided[0]} and "
            f"{decided[1]} were answered about, so that the intervals are wider than planned"
        )
    fewer = int((seen < seen.max()).sum())
    if fewer:
        findings.append(
            f"{fewer} of {len(seen)} candidates got fewer than {seen.max()} answers; all of them are compared with the "
            f"claim for {seen.max()}"
        )
    return tuple(findings)


def _check_classes(model: Mapping[str, Any]) -> None:
    """Raise ValueError for a model whose answers are no probabilities of classes: every score here takes these."""
    if [output["name"] for output in model.get("outputs", ())] not in ([], ["probabilities"]):
        names = ", ".join(output["name"] for output in model["outputs"])
        raise ValueError(
            f"the model answers with {names}: attacks score probabilities of classes, and there is none here on other "
            "answers"
        )


def _check_enough(decided: tuple[int, int], confidence: float, exhausted: tuple[str, ...]) -> None:
    of_each = min(decided)
    if of_each < 1 or largest_epsilon(of_each, confidence) <= 0:
        why = f" before the budget ran out ({', '.join(exhausted)})" if exhausted else ""
        raise ValueError(
            f"too few samples for {confidence:.0%} confidence: {of_each} members and as many non-members were answered"
            f"{why}"
        )


def _claims(
    model: Mapping[str, Any], accounts: Sequence[Mapping[str, Any]], releases: int
) -> tuple[ClaimedReleases, ClaimedReleases]:
    """Return the claims about the answers of one decision, and about those of all decisions together.

    Of a release that was paid for once both are all of it: the keys hold the same release.
    """
    price = model.get("price_per_row")
    cost = Cost.parse(str(price["losses"])) if price else Cost()
    if cost.losses:
        return claim_of_releases(cost, releases, float(accounts[0]["delta"])), claim_of_accounts(accounts)
    finest = max(accounts, key=lambda account: float(account["spent"]["epsilon"]))
    claim = replace(claim_of_accounts([finest]), failure=failure_of(Cost.parse(str(model.get("cost", "")))))
    claim = claim.with_an_epsilon(STEPS)
    return claim, claim
