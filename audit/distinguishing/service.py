"""The distinguishing audit of a service: two running services of neighbouring models, asked and distinguished.

The auditor holds both bundles, as an owner does, and has a key of each service. A question that was asked before is
answered with the same bytes, by anybody, so every trial asks a question of its own: the strongest row a few steps of
its features away. Every trial's noise is then independent of the others', and its score is computed from the logits of
the very row that was asked, so that the distance costs no power.

`LiveAudit` is the audit that a running service makes of itself, from answers that it charged like any others.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from accounting.arrays import Floats
from audit.distinguishing.likelihood import Worlds, scores, worst_case
from audit.distinguishing.mechanism import claimed_tradeoff
from audit.distinguishing.neighbours import Neighbours
from audit.endpoint import served_mechanism
from audit.estimators import Errors, epsilon_of_mu, errors_at, largest_refuted, refuted_by_limits
from audit.families import GAUSSIAN
from audit.noise import NoiseFinding, judge_known_logits, log_wealth_of_look, p_value_of_wealth, together
from audit.pieces import ResultStore, kept_scores_and_noise
from mechanisms.gaussian import Gaussian
from mechanisms.laplace import Laplace
from mechanisms.mechanism import Mechanism

_DRAWS = 4

JITTER = 2.0**-10
"""Largest distance of a trial's row from the strongest one, in ranges of a feature: about 2^14 steps."""


class PredictionClient(Protocol):
    """A service through its public client, as `dpserve.Client`."""

    def model(self) -> Mapping[str, Any]:
        """Return the public part of the model's certificate and how it is served."""
        ...

    def predict_proba(self, X: Floats) -> Floats:
        """Return private probabilities (n, C) of rows (n, d)."""
        ...


def nearby_rows(
    row: Floats,
    count: int,
    lower: Floats,
    upper: Floats,
    rng: np.random.Generator,
    features: Callable[[Floats], Floats],
    asked: set[bytes] | None = None,
) -> Floats:
    """Return rows (count, d) within the bounds, each within JITTER of the range of `row` (1, d), no two one question.

    features: the model's, which tell what one question is. asked: questions that must not be asked again; takes up
    those of the rows. Raises ValueError where there are not so many questions so close.
    """
    questions: set[bytes] = set() if asked is None else asked
    nearby: list[Floats] = []
    for _ in range(_DRAWS):
        moves = rng.uniform(-JITTER, JITTER, (count, row.shape[1])) * (upper - lower)
        # Reflected at the bounds, for clipping would make rows alike where the strongest row lies on all of them.
        moved = row + moves
        moved = np.where(moved > upper, 2 * upper - moved, moved)
        rows: Floats = np.clip(np.where(moved < lower, 2 * lower - moved, moved), lower, upper)
        for one, phi in zip(rows, features(rows) + 0.0, strict=True):
            question = hashlib.sha256(phi.tobytes()).digest()
            if question not in questions and len(nearby) < count:
                questions.add(question)
                nearby.append(one)
        if len(nearby) == count:
            return np.stack(nearby)
    raise ValueError(f"there are not {count} different questions so close to one another")


def observe_services(
    service_in: PredictionClient,
    service_out: PredictionClient,
    pair: Neighbours,
    row: Floats,
    trials: int,
    rng: np.random.Generator,
    store: ResultStore,
    *,
    seed: int,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[Mechanism, Floats, Floats, NoiseFinding]:
    """Ask both services about `trials` rows near `row` (1, d); return the mechanism and the scores of either world.

    And what the answers show of their noise, about the exact logits of either model. That is the heart of the audit: it
    convicts noise that is too small or reused by far fewer answers than the two worlds' scores.

    Raises ValueError unless the services serve the pair's two models by the same mechanism at the same price, and
    whatever the client raises. Every row is charged at either service, unless the store has its scores: of both models,
    the price, the rows and the seed that `rng` came from.
    """
    mechanism = _check_agreement(service_in, service_out, pair)
    feature_map = pair.head_in.certificate.feature_map
    lower, upper = np.asarray(feature_map.lower), np.asarray(feature_map.upper)
    both: tuple[list[Floats], list[Floats]] = ([], [])
    noise: list[NoiseFinding] = []
    rows = nearby_rows(row, trials, lower, upper, rng, pair.head_in.features)
    batch = min(int(service_in.model()["largest_batch"]), int(service_out.model()["largest_batch"]))
    for start in range(0, trials, batch):
        asked = rows[start : start + batch]

        def ask(asked: Floats = asked) -> tuple[Floats, Floats, NoiseFinding]:
            worlds: Worlds = pair.worlds(asked)
            answers = [service.predict_proba(asked) for service in (service_in, service_out)]
            inside, outside = (scores(mechanism, one, worlds) for one in answers)
            tested = [
                judge_known_logits(mechanism, one, logits, worlds.sensitivity)
                for one, logits in zip(answers, (worlds.logits_in, worlds.logits_out), strict=True)
            ]
            return inside, outside, together(tested)

        piece = {
            "name": "audit-service",
            "seed": seed,
            "models": [head.certificate.model_id for head in (pair.head_in, pair.head_out)],
            "mechanism": mechanism.name,
            "losses": str(mechanism.cost),
            "rows": hashlib.sha256(asked.tobytes()).hexdigest(),
        }
        inside, outside, tested = kept_scores_and_noise(store, piece, ask)
        both[0].append(inside)
        both[1].append(outside)
        noise.append(tested)
        progress(len(asked))
    return mechanism, np.concatenate(both[0]), np.concatenate(both[1]), together(noise)


def _check_agreement(service_in: PredictionClient, service_out: PredictionClient, pair: Neighbours) -> Mechanism:
    models = service_in.model(), service_out.model()
    for model, head, which in zip(models, (pair.head_in, pair.head_out), ("first", "second"), strict=True):
        if model["model_id"] != head.certificate.model_id:
            raise ValueError(f"the {which} service serves another model than the {which} bundle holds")
    if any(models[0][key] != models[1][key] for key in ("mechanism", "price_per_row")):
        raise ValueError("the two services answer by different mechanisms or at different prices")
    return served_mechanism(models[0])


CONFIDENCE = 0.95
_DOUBT = 0.05
_CONVICTION_DOUBT = 5e-10
"""False-alarm rate of either test that convicts, the bound of errors and that of noise: 1e-9 together."""
_LEAST_PROBABILITY = 2.0**-1000
"""Below it softmax underflows soon, and a probability no longer says what the noisy logit was."""
_REFERENCE_SHARE = 0.25
_FEWEST_ROWS = 8

CONVICTS = (
    "noise smaller than the price promises, in all or on one class, or the same for questions that are asked together, "
    "on the path that clients use"
)
CANNOT_CONVICT = (
    "a wrong sensitivity in the certificate, wrong training, right noise given again at another time, or a ledger that "
    "does not charge"
)


class TooMuchNoise(ValueError):
    """The noise spreads the logits so far that the answers do not tell them: this audit cannot be made."""


@dataclass(frozen=True)
class Counts:
    """The counts of a service's own audit. errors: of all looks. refuted: whether one of them refuted the claim.

    stopped_by_noise: whether a look raised TooMuchNoise. No other is taken after it, by this process or another.
    log_wealth: the sum over looks of `audit.noise.log_wealth_of_look`, None before the first that was tested so.
    """

    looks: Annotated[int, Field(ge=0)]
    answers: int
    errors: Errors | None
    refuted: bool
    stopped_by_noise: bool
    log_wealth: tuple[float, ...] | None = None


_COUNTS = TypeAdapter(Counts)


@dataclass(eq=False)
class LiveAudit:
    """The results of a service's own audit so far. delta: where the published epsilon is stated; 0 for a pure one.

    There is one model, so there is one world. The other is made from it: for mechanisms that add their noise to logits,
    adding d to the noisy logits of an answer gives an answer of a model whose logits lie d further, and d is as long as
    the row's stated sensitivity allows. What is published is computed from answers alone, never from exact logits:
    where the logits lie is estimated from some of the answers. Publishing is thus post-processing of what was charged,
    and free.

    Two tests convict, each with half of the doubt: errors of a guess which world an answer is from, and the spread of
    answers to near-copies, of all classes and of each (`audit.noise`), which needs no guess and far fewer answers.

    What it can convict: noise smaller than the price promises, for whatever reason (a wrong scale, a sensitivity that
    the service takes for smaller than its certificate says, a class without noise, a broken sampler, the same noise for
    all questions of a look), on the very path that clients use. What it cannot: a certificate whose sensitivity is
    wrong, a model trained on other records than said, noise that is right but given again at another time, or a ledger
    that does not charge. Those need two models (`observe_services`), or the ledger.
    """

    mechanism: Gaussian | Laplace
    classes: int
    delta: float
    counts: Counts = Counts(0, 0, None, False, False)

    def __post_init__(self) -> None:
        """Publish that nothing was seen yet."""
        self._claim = claimed_tradeoff(self.mechanism.cost, self.delta)
        self._direction = worst_case(self.mechanism, self.classes)
        self._take(self.counts)

    def kept(self) -> dict[str, Any]:
        """Return what another process needs to go on, in JSON's types: counts, and no answer."""
        return asdict(self.counts)

    def go_on(self, kept: Mapping[str, Any]) -> None:
        """Take up what `kept` returned of an audit of the same mechanism. Raises ValueError for what it cannot be.

        The looks go on being counted, so that the confidence holds for those before and after together.
        """
        try:
            counts = _COUNTS.validate_python(kept)
        except ValidationError as error:
            raise ValueError("no looks are counted there") from error
        if (counts.errors is None) != (counts.looks == 0):
            raise ValueError("no errors are counted there")
        self._take(counts)

    def _take(self, counts: Counts) -> None:
        """Make these counts the audit's, all at once: an error on the way leaves those before."""
        bound, family = 0.0, self._claim.family
        if counts.errors is not None:
            # A doubt, and no confidence: 1 less it would soon be 1.
            share = 1 / (counts.looks * (counts.looks + 1))
            bound = largest_refuted(family, *counts.errors.limits_beyond(_DOUBT * share))
            limits = counts.errors.limits_beyond(_CONVICTION_DOUBT * share)
            claimed = min(self._claim.parameter, family.largest)
            counts = replace(counts, refuted=counts.refuted or refuted_by_limits(family, claimed, *limits))
        if counts.log_wealth is not None:
            expected = len(self._unseen())
            if len(counts.log_wealth) != expected:
                raise ValueError(f"noise is tested there by {len(counts.log_wealth)} numbers, not {expected}")
            too_small = p_value_of_wealth(np.array(counts.log_wealth)) <= _CONVICTION_DOUBT
            counts = replace(counts, refuted=counts.refuted or too_small)
        self._latest, self.counts = self._published(bound, counts), counts

    def _unseen(self) -> Floats:
        """Return the logarithms of wealth before any look."""
        return np.zeros_like(log_wealth_of_look(self.mechanism, np.full((2, self.classes), 0.5), np.zeros(2)))

    @property
    def suspicious(self) -> bool:
        """Whether the newest bound exceeds the claim, or noise looks too small, without enough answers to refute it.

        Of a sound service it does so once in twenty audits at most for either reason.
        """
        latest, parameter = self._latest, self._claim.family.parameter
        exceeds = latest["lower_bound"][parameter] > self._claim.parameter or latest["noise_p_value"] < _DOUBT
        return exceeds and not self.counts.refuted

    @property
    def latest(self) -> dict[str, Any]:
        """The published state: the newest lower bound and the claim, and what the audit can find. For JSON."""
        return dict(self._latest)

    def look(self, answers: Floats, sensitivity: Floats, rng: np.random.Generator) -> dict[str, Any]:
        """Add the answers to rows that lie close together and were never asked before; return `latest`.

        Raises TooMuchNoise, having counted nothing, where the logits cannot be read off the answers, and at every look
        after it: to leave such looks out and go on would choose looks by their noise, to end does not, as each look's
        error is bounded whether it is counted or not.

        answers: (n, C), n >= 8, none of them a replay. sensitivity: (n,), public, of each row. rng: says which answers
        estimate the logits and which stand for which world.

        Why the bound holds. Let d(x) be at most as long as the sensitivity, in whole steps of the grid: an answer
        M(z(x)) whose noisy logits are moved by d is an answer M(z(x) + d(x)), and the pair has f for its trade-off. So
        has the pair of mixtures over rows that are drawn alike for either world, under any score whose reference comes
        from other answers; errors are counted at the threshold 0, fixed beforehand. Given the references, every look
        has its own two error rates. Half of the answers of every look stand for either world, so that the means of
        both rates over the looks have the same weights, and lie on or above f, which is convex. The count of errors is
        a sum of independent trials of different probabilities, whose lower tail is within that of the binomial law of
        their mean (Hoeffding 1956, Theorem 4, for counts at least 1 below the mean, as all are that such a limit fails
        for where the mean is at most all trials but one: Greenberg and Mohri 2014; beyond, a single trial may have gone
        the other way, and a limit so near 1 refutes nothing): Clopper and Pearson's limits hold for the mean. Look k
        may err with probability
        (1 - confidence)/(k (k + 1)): all looks together with at most 1 - confidence, so that the newest bound may be
        read at any time.
        """
        if len(answers) < _FEWEST_ROWS:
            raise ValueError(f"a look needs at least {_FEWEST_ROWS} answers, not {len(answers)}")
        if self.counts.stopped_by_noise or not (answers >= _LEAST_PROBABILITY).all():
            self.counts = replace(self.counts, stopped_by_noise=True)
            raise TooMuchNoise("some probabilities in the answers are too small to compute the noisy logits from")
        noisy = np.log(answers)
        noisy = noisy - noisy.mean(axis=1, keepdims=True)
        order = rng.permutation(len(answers))
        cut = max(2, round(_REFERENCE_SHARE * len(answers)))
        reference = np.median(noisy[order[:cut]], axis=0)
        half = (len(answers) - cut) // 2
        tested = order[cut : cut + 2 * half]
        inside = np.arange(2 * half) < half
        steps = self.mechanism.steps(sensitivity[tested], self.classes)[:, None]
        longest = (self._direction.logits_in - self._direction.logits_out) * sensitivity[tested, None]
        shift = np.trunc(longest / steps) * steps
        moved = noisy[tested] + np.where(inside[:, None], shift, 0.0)
        base = np.broadcast_to(reference, shift.shape)
        look_scores = scores(
            self.mechanism,
            np.exp(moved - moved.max(axis=1, keepdims=True)),
            Worlds(base + shift, base, sensitivity[tested]),
        )
        errors, before = errors_at(look_scores[inside], look_scores[~inside], 0.0), self.counts
        wealth = self._unseen() if before.log_wealth is None else np.array(before.log_wealth)
        wealth = wealth + log_wealth_of_look(self.mechanism, answers, sensitivity)
        self._take(
            replace(
                before,
                looks=before.looks + 1,
                answers=before.answers + len(answers),
                errors=errors if before.errors is None else before.errors + errors,
                log_wealth=tuple(wealth.tolist()),
            )
        )
        return self.latest

    def _published(self, bound: float, counts: Counts) -> dict[str, Any]:
        claim = self._claim
        # That a bound of the family's parameter implies, at the claim's delta.
        epsilon = epsilon_of_mu(bound, claim.delta) if claim.family is GAUSSIAN else bound * (claim.delta == 0)
        return {
            "mechanism": self.mechanism.name,
            "claim": {
                "losses": str(claim.cost),
                claim.family.parameter: claim.parameter,
                "epsilon_at_delta": claim.epsilon,
                "delta": claim.delta,
            },
            "lower_bound": {claim.family.parameter: bound, "epsilon_at_delta": epsilon},
            "confidence": CONFIDENCE,
            # Two digits, so that how sums were rounded does not show.
            "noise_p_value": 1.0
            if counts.log_wealth is None
            else float(f"{p_value_of_wealth(np.array(counts.log_wealth)):.1e}"),
            "refuted": counts.refuted,
            "answers": counts.answers,
            "looks": counts.looks,
            "convicts": CONVICTS,
            "cannot_convict": CANNOT_CONVICT,
        }


def auditable(mechanism: Mechanism) -> Gaussian | Laplace:
    """Return the mechanism, or raise ValueError for one that does not add its noise to logits."""
    if isinstance(mechanism, Gaussian | Laplace):
        return mechanism
    raise ValueError(
        "a service can audit itself where it adds noise to logits, as gaussian and laplace do; "
        f"{mechanism.name!r} needs two services: dpserve audit service"
    )
