"""An audit of a training by replay: what a record's absence changes, beside what was released.

A training on records D is recorded: what each release was computed from, and what came out. Then the same training is
played on a neighbour D', with one record, or one unit, less or more: each release gives what it gave before, each
record has the coins that it had, and all else is computed from D'. Then

- the releases are the same, in number, order and declared numbers;
- what each was computed from moved by at most the sensitivity that its noise is for, and only those that were computed
  from one part of the records moved, where records were kept apart;
- everything else that leaves the training has the same bytes: what strangers are shown, and what holders get.

Why this convicts. All three hold for every D, D' and every outcome of the releases where the proof holds: its only ways
to the records are the releases. One pair that breaks one of them refutes the proof, with certainty, without a thousand
trainings. It cannot see the law of the noise, which the audits of mechanisms and of the sampler measure, nor time, nor
what a pair that was not tried would show. (Re:cord-play, arXiv 2602.17454.)
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from dpserve.accounting.arrays import Floats, Words
from dpserve.mechanisms.randomness import Randomness
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.mechanisms.tapes import Law, Tape
from dpserve.training.bundles.sealing import load_sealed
from dpserve.training.fit import Request, fit
from dpserve.training.inputs.records import Records, Units
from dpserve.training.kinds.loading import load_model

_ROUNDING = 1e-9
"""The share by which a movement that is computed here may lie above the exact one."""


@dataclass(frozen=True)
class Taped:
    """One release. values: what it was computed from. released: what came out."""

    law: Law
    values: Floats
    released: Floats


@dataclass(frozen=True)
class Broken:
    """One thing that a training must keep and does not.

    what: "sequence" of the releases, "movement" of one, "parts" of which one alone may move, "strangers" or "holders"
    who would see it. where: the release, or the field. moved, most: of a movement.
    """

    what: Literal["sequence", "movement", "parts", "strangers", "holders"]
    where: str
    moved: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Replayed:
    """The result of an audit. broken: each thing once. moved: how far each release moved at most, and may."""

    broken: tuple[Broken, ...]
    moved: Mapping[str, tuple[float, float]]


@dataclass
class Recording(Tape):
    """The first training: it draws, and keeps."""

    seed: int
    taped: list[Taped] = field(default_factory=list)
    tossed: list[Words] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start the streams."""
        self._words, self._coins, self._noise = (
            SeededRandomness(self.seed, ("replay", each)) for each in ("words", "coins", "noise")
        )

    def words(self, count: int) -> Words:
        """Return the next words."""
        return self._words.words(count)

    def coins(self, count: int) -> Words:
        """Return the next coins, and keep them."""
        self.tossed.append(self._coins.words(count))
        return self.tossed[-1]

    def next_part(self) -> None:
        """Nothing is to be kept of it."""

    def released(self, law: Law, values: Floats, draw: Callable[[Randomness], Floats]) -> Floats:
        """Draw the release, and keep it."""
        out = draw(self._noise)
        self.taped.append(Taped(law, np.array(values), np.array(out)))
        return out


class Lost(Exception):
    """The training went another way than the one that was recorded."""


@dataclass
class Playing(Tape):
    """The second training, on a neighbour whose last record, or unit, is one more or one less."""

    recording: Recording
    broken: list[Broken] = field(default_factory=list)
    moved: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The largest movement of each release, and its sensitivity."""

    def __post_init__(self) -> None:
        """Begin at the beginning."""
        self._words = SeededRandomness(self.recording.seed, ("replay", "words"))
        self._more = SeededRandomness(self.recording.seed, ("replay", "one more"))
        self._tossed, self._taped = iter(self.recording.tossed), iter(self.recording.taped)
        self._squares: dict[Law, float] = {}
        self._earlier_part_moved = False

    def words(self, count: int) -> Words:
        """Return the words that were given before."""
        return self._words.words(count)

    def coins(self, count: int) -> Words:
        """Return the coins of before: without the last, or with one more behind them."""
        before = next(self._tossed, None)
        if before is None or abs(count - len(before)) > 1:
            self._lose(f"{count} coins")
        return np.concatenate([before, self._more.words(1)]) if count > len(before) else before[:count]

    def next_part(self) -> None:
        """Note whether anything has moved yet."""
        self._earlier_part_moved = self._earlier_part_moved or any(moved for moved, _ in self.moved.values())

    def released(self, law: Law, values: Floats, draw: Callable[[Randomness], Floats]) -> Floats:
        """Return what was released before, and note how far the values have moved."""
        del draw
        before = next(self._taped, None)
        if before is None or before.law != law or before.values.shape != np.shape(values):
            self._lose(f"a release of {np.size(values)} values by {law}")
        earlier = 0.0 if law.whole else self._squares.get(law, 0.0)
        self._squares[law] = earlier + float(np.square(values - before.values).sum())
        moved = math.sqrt(self._squares[law])
        self.moved[str(law)] = max(moved, self.moved.get(str(law), (0.0, 0.0))[0]), law.sensitivity
        if moved > law.sensitivity * (1 + _ROUNDING):
            self.broken.append(Broken("movement", str(law), moved, law.sensitivity))
        if moved and self._earlier_part_moved:
            self.broken.append(Broken("parts", str(law), moved, 0.0))
        return before.released.copy()

    def _lose(self, where: str) -> NoReturn:
        self.broken.append(Broken("sequence", where))
        raise Lost(where)

    def end(self) -> None:
        """Note what was released before and is not now."""
        if (left := next(self._taped, None)) is not None:
            self.broken.append(Broken("sequence", f"no release by {left.law}"))


@dataclass(frozen=True)
class Outcome:
    """A training's outcome. strangers, holders: what they are shown of it. weights: of a model that is private.

    sensitivity: how far these may move; None where everything is shown to holders.
    """

    strangers: Mapping[str, Any]
    holders: Mapping[str, Any]
    weights: Floats | None = None
    sensitivity: float | None = None


_DRAWN_BY_THE_SYSTEM = frozenset({"model_id", "binding_key", "noise_key", "weights_sha256"})
"""Fields that are drawn for each model, or follow from what is: no record has a say in them, and no tape."""

Train = Callable[[Records, Tape], Outcome]


def trained_by(request: Request, folder: Path) -> Train:
    """Return a training as `fit` does it. folder: of the bundles and the secrets that it makes."""
    number = count()

    def train(records: Records, tape: Tape) -> Outcome:
        place = folder / f"training-{next(number)}"
        fit(records, request, place / "bundle", state=place / "state", randomness=tape)
        return outcome(load_model(place / "bundle"), place / "bundle")

    return train


def outcome(model: Any, bundle: Path) -> Outcome:
    """Return the outcome of the training that made a model. bundle: which it was read from."""
    certificate = model.certificate
    if not hasattr(certificate, "releases"):
        return Outcome(certificate.public(), {}, model.weights, certificate.weight_sensitivity)
    _, tensors = load_sealed(bundle, type(certificate))
    return Outcome(certificate.shown_to_strangers(), {**certificate.public(), "tensors": tensors})


def units_to_try(records: Records, trials: int, seed: int = 0) -> list[int]:
    """Return the units to leave out: those with the longest row and the most records, those alone in a class, others.

    Each once, as many as there are or as `trials`.
    """
    of = np.arange(len(records)) if records.units is None else records.units.of
    lengths = np.square(records.X / np.maximum(np.abs(records.X).max(axis=0), 1e-300)).sum(axis=1)
    classes = np.bincount(records.y, minlength=len(records.declaration.classes))
    first = [of[lengths.argmax()], np.bincount(of).argmax(), *of[classes[records.y] == 1]]
    others = np.random.default_rng(seed).permutation(int(of.max()) + 1)
    return list(dict.fromkeys([*map(int, first), *others.tolist()]))[:trials]


def audit_training(
    train: Train, records: Records, trials: int, seed: int = 0, progress: Callable[[int], None] = lambda _: None
) -> Replayed:
    """Return what a training breaks with and without some of its records, or units. progress: hears of each."""
    each = []
    for unit in units_to_try(records, trials, seed):
        each.append(replay(train, records, unit, seed + unit))
        progress(1)
    return together(each)


def together(each: Sequence[Replayed]) -> Replayed:
    """Return several results as one."""
    moved: dict[str, tuple[float, float]] = {}
    for release, (by, most) in chain.from_iterable(one.moved.items() for one in each):
        moved[release] = max(by, moved.get(release, (0.0, most))[0]), most
    return Replayed(tuple(dict.fromkeys(chain.from_iterable(one.broken for one in each))), moved)


def replay(train: Train, records: Records, unit: int, seed: int = 0) -> Replayed:
    """Return what a training breaks with and without one record, or unit, both ways round. unit: its index."""
    full = with_last(records, unit)
    of = np.arange(len(full)) if full.units is None else full.units.of
    less = full.taken(of < of.max())
    each = []
    for recorded, played in ((full, less), (less, full)):
        recording = Recording(seed)
        before = train(recorded, recording)
        playing = Playing(recording)
        with suppress(Lost):  # which has noted it
            after = train(played, playing)
            playing.end()
            playing.broken += differences(before, after)
        each.append(Replayed(tuple(playing.broken), playing.moved))
    return together(each)


def differences(before: Outcome, after: Outcome) -> Iterator[Broken]:
    """Yield the places where two outcomes differ that must not."""
    yield from (Broken("strangers", where) for where in _unlike(before.strangers, after.strangers))
    yield from (Broken("holders", where) for where in _unlike(before.holders, after.holders))
    if before.weights is not None and after.weights is not None and before.sensitivity is not None:
        moved = float(np.linalg.norm(before.weights - after.weights))
        if moved > before.sensitivity * (1 + _ROUNDING):
            yield Broken("movement", "weights", moved, before.sensitivity)


def _unlike(before: object, after: object, where: str = "") -> Iterator[str]:
    """Yield the paths at which two values differ in a bit."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after} - _DRAWN_BY_THE_SYSTEM):
            yield from _unlike(before.get(name), after.get(name), f"{where}.{name}".lstrip("."))
    elif _bytes_of(before) != _bytes_of(after):
        yield where


def _bytes_of(value: object) -> bytes:
    return value.tobytes() if isinstance(value, np.ndarray) else json.dumps(value, default=str).encode()


def with_last(records: Records, unit: int) -> Records:
    """Return the records with one unit last, so that coins of the others stay theirs without it."""
    if records.units is None:
        return records.taken(np.r_[np.delete(np.arange(len(records)), unit), unit])
    last = int(records.units.of.max())
    codes = np.arange(last + 1)
    codes[[unit, last]] = last, unit
    names = records.units.names
    units = Units(records.units.column, codes[records.units.of], None if names is None else names[codes])
    return replace(records, units=units, files=None, ids=None)
