"""An audit of a training by replay: what a record's absence changes, beside what was released.

A training on records D is recorded: what each release was computed from, and what came out. Then the same training is
played on a neighbour D', with one record, or one unit, less or more: each release gives what it gave before, each
record has the coins that it had, and all else is computed from D'. Then

- the releases are the same, in number, order and declared numbers;
- what each was computed from moved by at most the sensitivity that its noise is for, and only those that were computed
  from one part of the records moved, where records were kept apart;
- everything else that leaves the training has the same bytes: what strangers are shown, and what clients are.

What strangers are shown follows from what was declared, and from coins and noise, alone: so it is the same, too, after
a training on a tenth of the records, where each release gives something else.

Exact numbers that stay with the owner, as a head's weights, may move by what their certificate says, which is the same
with the record and without it: it is what the noise of answers follows from.

Why this convicts. All three hold for every D, D' and every outcome of the releases where the proof holds: its only ways
to the records are the releases. One pair that breaks one of them refutes the proof, with certainty, without a thousand
trainings. It cannot see the law of the noise, which the audits of mechanisms and of the sampler measure, nor time, nor
what a pair that was not tried would show. (Re:cord-play, arXiv 2602.17454.)
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count, islice, zip_longest
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats, Integers, Words
from dpserve.mechanisms.randomness import Randomness
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.mechanisms.tapes import Law, Tape
from dpserve.training.bundles.sealing import load_sealed
from dpserve.training.errors import MissingExtra, TrainingError, WrongOption
from dpserve.training.fit import Request, fit
from dpserve.training.inputs.lineage import RecordRegistry
from dpserve.training.inputs.records import Digests, Records, Units
from dpserve.training.kinds.kind import Bounded
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.registry import kind_of

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

    what: "sequence" of the releases, "movement" of one, "parts" of which one alone may move, "strangers" or "clients"
    who would see it. where: the release, or the field. moved, most: of a movement. record: that there is in one of
    the neighbours alone.
    """

    what: Literal["sequence", "movement", "parts", "strangers", "clients"]
    where: str
    moved: float | None = None
    most: float | None = None
    record: str = ""


@dataclass(frozen=True)
class Replayed:
    """The result of an audit. moved: how far each release moved at most, and may.

    broken: each thing once, by the record that shows it most. refused: why training refused the records with or without
    one, so that no more was compared.
    """

    broken: tuple[Broken, ...]
    moved: Mapping[str, tuple[float, float]]
    refused: tuple[str, ...] = ()


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
        self._squares: dict[str, float] = {}
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
        where = f"{self.release}: {law}" if self.release else str(law)
        if before is None or before.law != law or before.values.shape != np.shape(values):
            self._lose(f"{where}, of {np.size(values)} values")
        earlier = 0.0 if law.whole else self._squares.get(where, 0.0)
        self._squares[where] = earlier + float(np.square(values - before.values).sum())
        moved = math.sqrt(self._squares[where])
        self.note(where, moved, law.sensitivity)
        if moved and self._earlier_part_moved:
            self.broken.append(Broken("parts", where, moved, 0.0))
        return before.released.copy()

    def note(self, where: str, moved: float, most: float) -> None:
        """Note how far something moved, and may."""
        self.moved[where] = _larger(moved, self.moved.get(where, (0.0, 0.0))[0]), most
        if not moved <= most * (1 + _ROUNDING):  # which is so for one that is no number, too
            self.broken.append(Broken("movement", where, moved, most))

    def _lose(self, where: str) -> NoReturn:
        self.broken.append(Broken("sequence", where))
        raise Lost(where)

    def end(self) -> None:
        """Note what was released before and is not now."""
        if (left := next(self._taped, None)) is not None:
            self.broken.append(Broken("sequence", f"no release by {left.law}"))


@dataclass(frozen=True)
class Outcome:
    """A training's outcome. strangers, clients: what they are shown of it. bounded: exact numbers that nobody is."""

    strangers: Mapping[str, Any]
    clients: Mapping[str, Any]
    bounded: Sequence[Bounded] = ()


_DRAWN_BY_THE_SYSTEM = frozenset({"model_id", "binding_key", "noise_key", "weights_sha256"})
"""Fields that are drawn for each model, or follow from what is: no record has a say in them, and no tape."""

Train = Callable[[Records, Tape], Outcome]


def trained_by(request: Request, folder: Path, earlier: Records) -> Train:
    """Return a training as `fit` does it. folder: of the bundles and the secrets that it makes.

    earlier: the records that the lineage has from an earlier training, as those of most trainings are.
    """
    number = count()

    def train(records: Records, tape: Tape) -> Outcome:
        place = folder / f"training-{next(number)}"
        registry = RecordRegistry(place / "state")
        with registry.noted(request.lineage, registry.digests(earlier), earlier.unit):
            pass
        fit(records, request, place / "bundle", state=place / "state", randomness=tape)
        return outcome(load_model(place / "bundle"), place / "bundle")

    return train


def outcome(model: Any, bundle: Path) -> Outcome:
    """Return the outcome of the training that made a model. bundle: which it was read from."""
    certificate = model.certificate
    strangers, clients, kind = certificate.shown_to_strangers(), certificate.public(), kind_of(model)
    if kind.answers == "metered":
        return Outcome(strangers, clients, kind.bounded(model))
    _, tensors = load_sealed(bundle, type(certificate))
    return Outcome(strangers, {**clients, "tensors": tensors})


@dataclass(frozen=True)
class NeighbouringRecords:
    """Two neighbouring data sets, which are made when they are asked for. record: the record, or unit, of one alone.

    make: returns the records with it, the last.
    """

    record: str
    make: Callable[[], Records]

    def both(self) -> tuple[Records, Records]:
        """Return the data set with the record, and the one without."""
        more = self.make()
        of = _units_of(more)
        return more, _read_alone(more, np.flatnonzero(of < of.max()))


def neighbours_to_try(records: Records, trials: int, seed: int = 0) -> list[NeighbouringRecords]:
    """Return neighbours that differ as much as any, as many as `trials`: by a record removed and by one added in turn.

    Removed are first those with the longest row and the most records, and those alone in a class or a block, then
    others, each once. Added are those of `_added`.
    """
    what = "record" if records.units is None else "unit"
    removed = (
        NeighbouringRecords(f"{what} {unit + 1}", partial(with_last, records, unit)) for unit in _removed(records, seed)
    )
    in_turn = chain.from_iterable(zip_longest(removed, _added(records)))
    return list(islice(filter(None, in_turn), trials))


def known_before(records: Records) -> Records:
    """Return the record, or the unit, that is left out first, for the lineage to know: without it it knows none."""
    of = _units_of(records)
    return _read_alone(records, np.flatnonzero(of == of[_longest(records)]))


def _removed(records: Records, seed: int) -> Iterator[int]:
    """Yield each unit once, those first that move most."""
    of = _units_of(records)
    places = records.block_places
    groups = [records.y, *([] if places is None else [places])]
    alone = chain.from_iterable(_alone(group, of) for group in groups)
    others = np.random.default_rng(seed).permutation(int(of.max()) + 1)
    first = [of[_longest(records)], np.bincount(of).argmax(), *alone]
    yield from dict.fromkeys(map(int, [*first, *others]))


def _alone(groups: Integers, of: Integers) -> Iterator[int]:
    """Yield the units that alone have records in a group."""
    for group in np.unique(groups):
        units = np.unique(of[groups == group])
        if len(units) == 1:
            yield int(units[0])


_RECORDS_OF_A_UNIT = 20
"""So many equal records has a unit that is added: they exceed a sensitivity without units."""


def _added(records: Records) -> Iterator[NeighbouringRecords]:
    """Yield the neighbours with a made record more, or a made unit of many equal ones: as far out as bounds allow, in
    the class and the block with the fewest, or equal to another.
    """
    declaration, place = records.declaration, _longest(records)
    lower, upper = np.array(declaration.lower), np.array(declaration.upper)
    counts = np.bincount(records.y, minlength=len(declaration.classes))
    rare, common = int(counts.argmin()), int(counts.argmax())
    own, other = int(records.y[place]), int((records.y[place] + 1) % len(counts))
    in_turn = np.where(np.arange(len(lower)) % 2, lower, upper)
    made = (
        ("at all upper bounds, in the rarest class", upper, rare, None),
        ("that is there already", records.X[place], own, place),
        ("at all lower bounds", lower, common, None),
        ("that is there already, of another class", records.X[place], other, place),
        ("at upper and lower bounds in turn", in_turn, common, None),
    )
    whose = "a record" if records.units is None else f"a unit of {_RECORDS_OF_A_UNIT} records"
    for how, *more in made:
        yield NeighbouringRecords(f"{whose} {how}", partial(_with_more, records, *more))


def _with_more(records: Records, row: Floats, label: int, twin: int | None) -> Records:
    """Return the records with one more, or a unit of several. twin: the record whose row it has."""
    many = 1 if records.units is None else _RECORDS_OF_A_UNIT
    made = np.frombuffer(hashlib.blake2b(row.tobytes() + bytes([label % 256]), digest_size=16).digest(), np.uint8)
    octets = np.tile(made, (many, 1))
    places = units = None
    if records.block_places is not None:
        fewest = np.bincount(records.block_places, minlength=len(records.declaration.blocks)).argmin()
        places = np.append(records.block_places, [fewest if twin is None else records.block_places[twin]] * many)
    if records.units is not None:
        names = None if records.units.names is None else np.vstack([records.units.names, made])
        of = np.append(records.units.of, [records.units.of.max() + 1] * many)
        units = Units(records.units.column, of, names)
    return replace(
        records,
        X=np.vstack([records.X, np.tile(row, (many, 1))]),
        y=np.append(records.y, [label] * many),
        source=_source_with(records.source, octets, twin),
        units=units,
        files=None,
        ids=None if records.ids is None else np.vstack([records.ids, octets]),
        block_places=places,
    )


def _source_with(source: Sequence[bytes], octets: NDArray[np.uint8], twin: int | None) -> Sequence[bytes]:
    """Return the source with more rows, new ones or as the twin's is."""
    if isinstance(source, Digests):
        new = octets if twin is None else np.tile(source.octets[twin], (len(octets), 1))
        return Digests(np.vstack([source.octets, new]))
    return (*source, *(row.tobytes() if twin is None else source[twin] for row in octets))


def _read_alone(records: Records, places: Integers) -> Records:
    """Return some of the records as they would have been read without the others: with their own sources and keys."""
    source = records.source
    if isinstance(source, Digests):
        source = Digests(source.octets[places])
    elif len(source) == len(records):
        source = tuple(source[place] for place in places)
    return replace(records.taken(places), source=source, ids=None if records.ids is None else records.ids[places])


def _units_of(records: Records) -> Integers:
    """Return the unit of each record (n,)."""
    return np.arange(len(records)) if records.units is None else records.units.of


def _longest(records: Records) -> int:
    """Return the place of the longest row."""
    longest = np.square(records.X / np.maximum(np.abs(records.X).max(axis=0), 1e-300)).sum(axis=1).argmax()
    return int(longest)


def audit_training(
    train: Train, records: Records, trials: int, seed: int = 0, progress: Callable[[int], None] = lambda _: None
) -> Replayed:
    """Return what a training breaks with and without some records, or units, and what of its releases strangers see.

    progress: hears of each neighbour.
    """
    each = [shown_unpaid(train, records, seed)]
    for place, pair in enumerate(neighbours_to_try(records, trials, seed)):
        each.append(replay(train, pair, seed + place))
        progress(1)
    return together(each)


def together(each: Sequence[Replayed]) -> Replayed:
    """Return several results as one."""
    moved: dict[str, tuple[float, float]] = {}
    for release, (by, most) in chain.from_iterable(one.moved.items() for one in each):
        moved[release] = _larger(by, moved.get(release, (0.0, most))[0]), most
    broken: dict[tuple[str, str], Broken] = {}
    for found in chain.from_iterable(one.broken for one in each):
        known = broken.setdefault((found.what, found.where), found)
        if (found.moved or 0) > (known.moved or 0):
            broken[found.what, found.where] = found
    refused = dict.fromkeys(chain.from_iterable(one.refused for one in each))
    return Replayed(tuple(broken.values()), moved, tuple(refused))


def _larger(one: float, other: float) -> float:
    """Return the larger movement; one that is no number is larger than all."""
    return one if math.isnan(one) or one > other else other


def shown_unpaid(train: Train, records: Records, seed: int = 0) -> Replayed:
    """Return what strangers are shown that is other after a training on a tenth of the records, by the same noise."""
    of = _units_of(records)
    few = _read_alone(records, np.flatnonzero(of <= of.max() // 10))
    try:
        before, after = (train(each, Recording(seed)) for each in (records, few))
    except (WrongOption, MissingExtra):
        raise
    except TrainingError as error:
        return Replayed((), {}, (f"without all but a tenth of them: {error}",))
    unlike = _unlike(before.strangers, after.strangers)
    return Replayed(tuple(Broken("strangers", where, record="all but a tenth") for where in unlike), {})


def replay(train: Train, pair: NeighbouringRecords, seed: int = 0) -> Replayed:
    """Return what a training breaks with and without one record, or unit, both ways round.

    Raises WrongOption and MissingExtra, which no record decides.
    """
    each = []
    more, fewer = pair.both()
    for recorded, played in ((more, fewer), (fewer, more)):
        recording = Recording(seed)
        playing, refused = Playing(recording), tuple[str, ...]()
        try:
            before = train(recorded, recording)
            with suppress(Lost):  # which has noted it
                after = train(played, playing)
                playing.end()
                playing.broken += differences(before, after)
                for what, by, most in _moved(before, after):
                    playing.note(what, by, most)
        except (WrongOption, MissingExtra):
            raise
        except TrainingError as error:
            refused = (f"with or without {pair.record}: {error}",)
        broken = (replace(one, record=pair.record) for one in playing.broken)
        each.append(Replayed(tuple(broken), playing.moved, refused))
    return together(each)


def differences(before: Outcome, after: Outcome) -> Iterator[Broken]:
    """Yield the places where two outcomes differ that must not."""
    yield from (Broken("strangers", where) for where in _unlike(before.strangers, after.strangers))
    yield from (Broken("clients", where) for where in _unlike(before.clients, after.clients))


def _moved(before: Outcome, after: Outcome) -> Iterator[tuple[str, float, float]]:
    """Yield what moved beside releases, how far, and how far it may: of rows the one that moved most of what it may.

    A bound is a number of the certificate, and moves by nothing.
    """
    for one, other in zip(before.bounded, after.bounded, strict=True):
        moved = np.atleast_1d(np.linalg.norm(one.values - other.values, one.order, axis=-1))
        most = np.broadcast_to(np.maximum(one.most, other.most), moved.shape)
        worst = int((moved / most).argmax())
        yield one.name, float(moved[worst]), float(most[worst])
        yield f"the bound of {one.name}", float(np.abs(one.most - other.most).max()), 0.0


def _unlike(before: object, after: object, where: str = "") -> Iterator[str]:
    """Yield the paths at which two values differ in a bit."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after} - (frozenset() if where else _DRAWN_BY_THE_SYSTEM)):
            yield from _unlike(before.get(name), after.get(name), f"{where}.{name}".lstrip("."))
    elif _bytes_of(before) != _bytes_of(after):
        yield where


def _bytes_of(value: object) -> bytes:
    if isinstance(value, np.ndarray):
        return repr((value.shape, value.dtype)).encode() + value.tobytes()
    return json.dumps(value, default=str).encode()


def with_last(records: Records, unit: int) -> Records:
    """Return the records with one unit last, so that coins of the others stay theirs without it."""
    if records.units is None:
        return _read_alone(records, np.r_[np.delete(np.arange(len(records)), unit), unit])
    last = int(records.units.of.max())
    codes = np.arange(last + 1)
    codes[[unit, last]] = last, unit
    names = records.units.names
    units = Units(records.units.column, codes[records.units.of], None if names is None else names[codes])
    return replace(records, units=units, files=None)
