"""`python -m research.noise_faults`: which audit finds which fault of noise, and services without a fault.

A head of the digits answers in this process behind each mechanism, and a fault is
planted between the certificate, which says what the noise should be, and the answers. Three audits look at it: the test
of noise of `dpserve attack` (`dpserve.audit.membership.near_copies`); `audit mechanism` on two worst-case inputs;
`audit service` on two heads that a record makes the difference between.
Prints for how many seeds each convicts. `--sound N` counts convictions, and small p, of N seeds without a fault.
`power` counts them for selections with too little noise, by the number of answers that each audit sees.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Annotated, Any

import numpy as np
import typer
from scipy.stats import laplace, norm

from dpserve.accounting.arrays import Floats
from dpserve.audit.distinguishing.mechanism import judge
from dpserve.audit.distinguishing.neighbours import Neighbours, neighbours
from dpserve.audit.distinguishing.service import observe_services
from dpserve.audit.in_process import BundleEndpoint, rehearsal_key
from dpserve.audit.membership.asking import AnswerJournal
from dpserve.audit.membership.near_copies import near_copies_to_ask
from dpserve.audit.membership.plan import NOISE_SHARE
from dpserve.audit.noise import NoiseFinding, judge_known_logits, together
from dpserve.audit.reports import ReportTable
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.laws import GAUSSIAN
from dpserve.mechanisms.randomness import KeyedRandomness, NoiseKey, Randomness
from dpserve.mechanisms.registry import priced
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.mechanisms.worlds import Worlds
from dpserve.training.exact.questions import MeteredModel
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.digits import load_digits
from dpserve.training.inputs.records import Records
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from research.commands import finished_pieces, program, run
from research.printing import print_tables

CONVICTS = NOISE_SHARE * 0.05
"""Below which p `dpserve attack` convicts at its default confidence."""
MECHANISMS = (
    ("gaussian", "noise-multiplier:20"),
    ("gaussian", "noise-multiplier:1"),
    ("laplace", "noise-multiplier:20"),
    ("selected-neuron", "rho:0.00125"),
    ("selected-neuron", "epsilon:0.5"),
    ("label", "epsilon:0.5"),
)
MECHANISM_TRIALS, SERVICE_TRIALS, _PIECE = 10_000, 2000, 2000
"""Answers of either world that `audit mechanism` and `audit service` see, as by default, and how many at once."""
CLASSES = 10

app = program()


@dataclass(frozen=True, eq=False)
class Faulty:
    """A mechanism that claims what `sound` claims and adds a share of its noise, or one draw of it to every row."""

    sound: Any
    share: float = 1.0
    reused: bool = False

    def __getattr__(self, name: str) -> Any:
        """Return what the sound mechanism says of itself."""
        return getattr(self.sound, name)

    def release(self, logits: Floats, sensitivity: Floats, randomness: Randomness) -> Floats:
        """Release with the fault."""
        if self.reused:
            randomness = KeyedRandomness(NoiseKey(bytes(32)), repr(self.sound).encode(), [b""] * len(logits))
        released: Floats = self.sound.release(logits, sensitivity * self.share, randomness)
        return released


class BareClass(Faulty):
    """The first class gets no noise, and the others theirs, drawn in floating point."""

    def release(self, logits: Floats, sensitivity: Floats, randomness: Randomness) -> Floats:
        """Release with the fault."""
        uniforms = ((randomness.words(logits.size) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        promised = self.sound.answer_noise(sensitivity, logits.shape[1])
        law = norm if promised.law is GAUSSIAN else laplace
        noise = law.ppf(uniforms).reshape(logits.shape) * promised.scale[:, None]
        noise[:, 0] = 0.0
        return softmax(logits + noise)


FAULTS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("none", lambda sound: sound),
    ("noise x 0.8", lambda sound: Faulty(sound, 0.8)),
    ("noise x 0.5", lambda sound: Faulty(sound, 0.5)),
    ("noise x 0.1, or sensitivity / 10 in the service", lambda sound: Faulty(sound, 0.1)),
    ("noise reused", lambda sound: Faulty(sound, reused=True)),
    ("one class without noise", BareClass),
)


def head_of_digits(records: Records | None = None) -> MeteredModel:
    """Train a head on the digits, or on these of them."""
    records = load_digits().train if records is None else records
    declared = records.declaration
    feature_map = Identity(lower=declared.lower, upper=declared.upper, clip_norm=1.0, bias=0.1)
    return train_head(records, Recipe("digits", feature_map, 10.0), "digits")


def attacked(model: MeteredModel, mechanism: Any, seed: int, rows: int | None = None) -> NoiseFinding:
    """Return what an attack's test of noise finds. rows: near-copies that it asks about; None for what it would."""
    head = replace(model, certificate=model.certificate.model_copy(update={"model_id": f"{seed:032x}"}))  # type: ignore[type-var]
    endpoint = BundleEndpoint(head, mechanism, rehearsal_key(seed))
    described = endpoint.model()
    journal = AnswerJournal(None, described)
    if rows is not None:
        journal.settle_near_copies(rows)
    return near_copies_to_ask(endpoint, described, journal, seed).ask(endpoint, journal)


def convicted_by_attack(model: MeteredModel, mechanism: Any, seed: int, rows: int | None = None) -> bool:
    """Return whether an attack's test of noise convicts."""
    return attacked(model, mechanism, seed, rows).p_value <= CONVICTS


def audited_mechanism(mechanism: Any, seed: int, trials: int = MECHANISM_TRIALS) -> bool:
    """Return whether `audit mechanism` convicts it, by as many answers to each of two inputs."""
    sound = getattr(mechanism, "sound", mechanism)
    worlds, randomness = sound.worst_neighbours(CLASSES), SeededRandomness(seed, ("noise faults", repr(mechanism)))
    ones = np.ones(_PIECE)
    batch = Worlds(np.repeat(worlds.logits_in, _PIECE, axis=0), np.repeat(worlds.logits_out, _PIECE, axis=0), ones)
    scored: tuple[list[Floats], list[Floats]] = ([], [])
    noise = []
    for _ in range(trials // _PIECE):
        for logits, kept in zip((batch.logits_in, batch.logits_out), scored, strict=True):
            answers = mechanism.release(logits, ones, randomness)
            kept.append(sound.log_ratio(answers, batch))
            noise.append(judge_known_logits(sound, answers, logits, ones))
    inside, outside = map(np.concatenate, scored)
    return judge(sound, inside, outside, delta=_delta(mechanism), noise=together(noise)).convicted


@cache
def neighbouring_heads() -> Neighbours:
    """Train two heads of the digits, with a record drawn at random and without it."""
    return neighbours("natural", load_digits().train, head_of_digits, np.random.default_rng(0))


@dataclass(frozen=True)
class Asked:
    """A bundle in this process as a client's view of a service."""

    endpoint: BundleEndpoint

    def model(self) -> Mapping[str, Any]:
        """Return what `GET /models/NAME` returns."""
        return self.endpoint.model()

    def predict_proba(self, X: Floats) -> Floats:
        """Return private probabilities (n, C)."""
        return self.endpoint.answers(X)


def audited_services(mechanism: Any, seed: int, trials: int = SERVICE_TRIALS) -> bool:
    """Return whether `audit service` convicts two services of neighbouring heads, by as many answers of each."""
    pair, delta = neighbouring_heads(), _delta(mechanism)
    services = [
        Asked(BundleEndpoint(head, mechanism, rehearsal_key(2 * seed + place)))
        for place, head in enumerate((pair.head_in, pair.head_out))
    ]
    rng = np.random.default_rng(seed)
    with finished_pieces(None) as store:
        sound, inside, outside, noise = observe_services(
            services[0], services[1], pair, pair.row[None], trials, rng, store, seed=seed
        )
    return judge(sound, inside, outside, delta=delta, noise=noise).convicted


def _delta(mechanism: Any) -> float:
    return 0.0 if np.isfinite(mechanism.cost.pure_epsilon) else 1e-5


def tabulate(model: MeteredModel, seeds: Sequence[int]) -> ReportTable:
    """Return for how many seeds each fault is convicted."""
    columns = ("mechanism", "fault", "attack", "largest p", "audit mechanism", "audit service")
    rows = list[tuple[str, ...]]()
    for mechanism, price in MECHANISMS:
        sound = priced(mechanism, price, CLASSES)
        for fault, plant in FAULTS:
            if plant is BareClass and sound.answer_noise(np.ones(1), CLASSES).on != "logits":
                continue
            planted = plant(sound)
            found = [attacked(model, planted, seed).p_value for seed in seeds]
            rows.append(
                (
                    f"{mechanism} {price}",
                    fault,
                    _count([p <= CONVICTS for p in found]),
                    f"{max(found):.1e}",
                    _count([audited_mechanism(planted, seed) for seed in seeds]),
                    _count([audited_services(planted, seed) for seed in seeds]),
                )
            )
    return ReportTable("Seeds of which each fault is convicted", columns, tuple(rows))


def _count(convicted: Sequence[bool]) -> str:
    return f"{sum(convicted)} of {len(convicted)}" if convicted else "-"


def count_alarms(model: MeteredModel, runs: int) -> ReportTable:
    """Return how often services without a fault are convicted, and how often the attack's p is small."""
    columns = (
        *("mechanism", "runs", "p <= .05", "p <= .001", "attack", "smallest p"),
        *("audit mechanism", "audit service"),
    )
    rows = list[tuple[str, ...]]()
    for mechanism, price in MECHANISMS:
        sound = priced(mechanism, price, CLASSES)
        seeds = range(1000, 1000 + runs)
        found = np.array([attacked(model, sound, seed).p_value for seed in seeds])
        counts = [str(int((found <= level).sum())) for level in (0.05, 1e-3, CONVICTS)]
        own = (
            [audited_mechanism(sound, seed) for seed in seeds],
            [audited_services(sound, seed) for seed in seeds],
        )
        rows.append((f"{mechanism} {price}", str(runs), *counts, f"{found.min():.1e}", *map(_count, own)))
    return ReportTable("Services without a fault", columns, tuple(rows))


@app.command()
def faults(
    seeds: Annotated[int, typer.Option(min=1, help="For each fault.")] = 10,
    sound: Annotated[int, typer.Option(min=0, help="Services without a fault, for each mechanism.")] = 0,
) -> None:
    """Print which audit convicts which fault, and how many sound services are convicted."""
    model = head_of_digits()
    tables = [tabulate(model, range(seeds))]
    if sound:
        tables.append(count_alarms(model, sound))
    print_tables(tables)


@app.command()
def power(seeds: Annotated[int, typer.Option(min=1, help="For each number of answers.")] = 5) -> None:
    """Print how many seeds convict selections with too little noise, by the answers that each audit sees."""
    model = head_of_digits()
    sizes = {"attack": (200, 800, 3200), "audit mechanism": (10**4, 10**5), "audit service": (2000, 8000)}
    rows = list[tuple[str, ...]]()
    for mechanism, price in MECHANISMS:
        if mechanism not in ("selected-neuron", "label"):
            continue
        sound = priced(mechanism, price, CLASSES)
        for share in (0.9, 0.8, 0.5):
            planted = Faulty(sound, share)
            audits: Mapping[str, Callable[[int, int], bool]] = {
                "attack": partial(convicted_by_attack, model, planted),
                "audit mechanism": partial(audited_mechanism, planted),
                "audit service": partial(audited_services, planted),
            }
            found = (
                f"{sum(convicts(seed, count) for seed in range(seeds))}"
                for audit, convicts in audits.items()
                for count in sizes[audit]
            )
            rows.append((f"{mechanism} {price}", f"noise x {share}", *found))
    columns = [f"{audit}, {count:,}" for audit, counts in sizes.items() for count in counts]
    print_tables([ReportTable(f"Convicted of {seeds} seeds", ("mechanism", "fault", *columns), tuple(rows))])


if __name__ == "__main__":
    run(app)
