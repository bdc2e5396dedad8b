"""Findings of the test of noise: planted faults of noise, by mechanism, and services without a fault.

A head of the digits, or teachers of a few of them, answers in this process behind each mechanism at a noise multiplier
of about 20, as `dpserve attack` asks it (`audit.membership.near_copies`), and as a service asks itself: 128 answers in
two looks. A fault is planted between the certificate, which says what the noise should be, and the answers. Prints for
how many seeds each test convicts, and its largest p. `--sound N` counts p-values of N services without a fault.
Run: python -m benchmarks.noise_faults [--seeds 10] [--sound 0]
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import laplace, norm

from accounting.arrays import Floats
from audit.distinguishing.service import LiveAudit
from audit.in_process import BundleEndpoint, rehearsal_key
from audit.membership.asking import AnswerJournal
from audit.membership.near_copies import near_copies_of_a_point, near_copies_to_ask
from audit.membership.plan import NOISE_SHARE
from audit.noise import NoiseFinding
from mechanisms.elementary import softmax
from mechanisms.gaussian import Gaussian
from mechanisms.laplace import Laplace
from mechanisms.mechanism import priced
from mechanisms.randomness import KeyedRandomness, NoiseKey, Randomness
from training.exact.questions import MeteredModel
from training.features.maps import Identity
from training.inputs.digits import load_digits
from training.kinds.head.recipe import Recipe
from training.kinds.head.train import train_head
from training.kinds.teachers.networks import Schedule
from training.kinds.teachers.train import TeachersRecipe, train_teachers

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
LOOKS, ROWS = 2, 64


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
        law = norm if isinstance(self.sound, Gaussian) else laplace
        noise = law.ppf(uniforms).reshape(logits.shape) * self.sound.noise_scale(sensitivity, logits.shape[1])[:, None]
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


def head_of_digits() -> MeteredModel:
    """Train a head on the digits."""
    records = load_digits().train
    declared = records.declaration
    feature_map = Identity(lower=declared.lower, upper=declared.upper, clip_norm=1.0, bias=0.1)
    return train_head(records, Recipe("digits", feature_map, 10.0), "digits")


def teachers_of_digits() -> MeteredModel:
    """Train 40 linear teachers on the digits, a few steps each."""
    records = load_digits().train
    declared = records.declaration
    feature_map = Identity(lower=declared.lower, upper=declared.upper, clip_norm=1.0, bias=0.1)
    recipe = TeachersRecipe("digits", feature_map, 40, schedule=Schedule(steps=40))
    return train_teachers(records, recipe, "digits", bytes(32))


def attacked(model: MeteredModel, mechanism: Any, seed: int) -> NoiseFinding:
    """Return what an attack's test of noise finds."""
    head = replace(model, certificate=model.certificate.model_copy(update={"model_id": f"{seed:032x}"}))  # type: ignore[type-var]
    endpoint = BundleEndpoint(head, mechanism, rehearsal_key(seed))
    described = endpoint.model()
    journal = AnswerJournal(None, described)
    return near_copies_to_ask(endpoint, described, journal, seed).ask(endpoint, journal)


def self_audited(model: MeteredModel, mechanism: Any, seed: int) -> tuple[float, bool]:
    """Return the p of noise after two looks of 64 answers, and whether either test of the service's audit refutes."""
    sound = getattr(mechanism, "sound", mechanism)
    endpoint = BundleEndpoint(model, mechanism, rehearsal_key(seed))
    audit = LiveAudit(sound, len(model.certificate.classes), 0.0 if np.isfinite(sound.cost.pure_epsilon) else 1e-5)
    rng = np.random.default_rng(seed)
    rows = near_copies_of_a_point(endpoint.model(), LOOKS * ROWS, seed)
    assert rows is not None
    for part in np.split(rows, LOOKS):
        audit.look(endpoint.answers(part), model.logit_sensitivity(model.features(part)), rng)
    return audit.latest["noise_p_value"], audit.latest["refuted"]


def tabulate(models: dict[str, MeteredModel], seeds: Sequence[int], console: Console) -> None:
    """Print for how many seeds each fault is convicted."""
    table = Table("model", "mechanism", "fault", "attack", "largest p", "self-audit", "largest p")
    for name, model in models.items():
        for mechanism, price in MECHANISMS:
            sound = priced(mechanism, price, len(model.certificate.classes))
            for fault, plant in FAULTS:
                added = isinstance(sound, Gaussian | Laplace)
                if plant is BareClass and not added:
                    continue
                found = [attacked(model, plant(sound), seed).p_value for seed in seeds]
                own = [self_audited(model, plant(sound), seed) for seed in seeds if added]
                table.add_row(
                    name,
                    f"{mechanism} {price}",
                    fault,
                    f"{sum(p <= CONVICTS for p in found)} of {len(found)}",
                    f"{max(found):.1e}",
                    f"{sum(refuted for _, refuted in own)} of {len(own)}" if own else "-",
                    f"{max(p for p, _ in own):.1e}" if own else "-",
                )
    console.print(table)


def count_alarms(models: dict[str, MeteredModel], runs: int, console: Console) -> None:
    """Print how often a service without a fault has a small p."""
    table = Table("model", "mechanism", "runs", "p <= .05", "p <= .001", "convicted", "smallest p")
    for name, model in models.items():
        for mechanism, price in MECHANISMS:
            sound = priced(mechanism, price, len(model.certificate.classes))
            found = np.array([attacked(model, sound, 1000 + run).p_value for run in range(runs)])
            counts = [str(int((found <= level).sum())) for level in (0.05, 1e-3, CONVICTS)]
            table.add_row(name, f"{mechanism} {price}", str(runs), *counts, f"{found.min():.1e}")
    console.print(table)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sound", type=int, default=0)
    arguments = parser.parse_args()
    console = Console(width=140)
    models = {"head": head_of_digits(), "teachers": teachers_of_digits()}
    tabulate(models, range(arguments.seeds), console)
    if arguments.sound:
        count_alarms(models, arguments.sound, console)


if __name__ == "__main__":
    main()
