"""`dpserve train` and `dpserve train-published`, and what they say comes next."""

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import typer
from pydantic import ValidationError

from accounting.ledger import Ledger, LedgerError, UnknownLineage
from dpserve.commands import options
from dpserve.commands.bundles import Certified, print_certificate
from dpserve.commands.choosing import ChoiceOptions, with_choice
from dpserve.commands.command import Options, option
from dpserve.commands.console import stdout_console, steps_with_progress
from dpserve.commands.options import state_folder
from dpserve.commands.releases import (
    ReleaseOptions,
    Training,
    answers_hint,
    budget_hint,
    check_options,
    train_release,
    train_with_progress,
)
from dpserve.commands.tables import IMAGE_SHAPE, LOCAL, READING, SCHEMA, FileOptions, image_shape
from service.errors import CannotServe
from training.bundle import save_bundle
from training.certificate import Certificate
from training.columns import usual_norm
from training.data.classes import parse_classes
from training.data.records import Declaration, Records
from training.encoder import OnnxEncoder, Singles
from training.errors import TrainingError, extra
from training.feature_maps import FEATURE_MAPS, Bins, Encoder, FeatureMap, Floats, default_clip_norm, own_fields
from training.lineage import DIGITS, KnownRecords, check_lineage_name, overlap
from training.planning import rules
from training.published.bundle import save_published
from training.releases.certificate import ReleaseCertificate
from training.releases.objective import NO_UNITS
from training.schema import Schema, read_schema
from training.sealing import one_line

FEATURES = "Features"
SOLVER = "The solver"
CHOOSING = "--budget, in place of --release"
ENCODER = "--encoder"
_PER_ANSWER = "--epsilon 3 --delta 1e-6"
_ROWS_IN_A_PART = 256
_KINDS = " or ".join(", ".join(FEATURE_MAPS).rsplit(", ", 1))


class NewBundle(FileOptions):
    """What is trained on, and the bundle to write."""

    data: str = option(
        ..., "'digits', or your own: a table (CSV, Parquet, Feather; a file, a folder or a URL) or FILE.npz."
    )
    schema_file: Path | None = SCHEMA()
    out: Path = option(..., "The bundle: a new folder.")
    lineage: str | None = option(
        None,
        "Your name for the lineage of the records: all models of records that overlap share one, and its budget. "
        "Needed with your own data.",
        default_text="digits: 'digits'",
        complete=options.lineage_names,
    )
    classes: str | None = option(
        None, "The class names, separated by commas, or VALUE=NAME of each; for your own data."
    )
    bounds: list[str] | None = option(
        None, "LOW:HIGH for every feature, NAME=LOW:HIGH for one; public, not read off the records."
    )
    unit: str | None = option(
        None,
        "Of a table: the column that names whose each record is. All records of one are then protected together. Not "
        "with --release objective, nor with --budget.",
    )
    engine: str = option(
        LOCAL,
        "Where a table's records are read and summed: local, or ray://HOST:PORT, a Ray cluster whose workers can read "
        "its files ('ray' starts one here). For a head and for --release class-sums, weights, objective and dpsgd.",
    )
    overlapping_lineage_is_accepted: bool = option(
        False, "Train although records are in another lineage: they then have a second budget."
    )
    name: str | None = option(None, "The model's public name.", default_text="the bundle's folder name")
    clip: bool = option(False, "Clip values beyond the bounds instead of refusing them.", panel=READING)

    @property
    def model_name(self) -> str:
        """The model's public name."""
        return self.name or self.out.resolve().name

    @property
    def lineage_name(self) -> str:
        """The lineage's name. Raises TrainingError where it is needed and not given."""
        if self.lineage is not None:
            return check_lineage_name(self.lineage)
        if self.data == "digits":
            return DIGITS
        raise TrainingError(
            "name the lineage of these records with --lineage NAME: all models of records that overlap share one name, "
            "and with it one budget"
        )

    def records(self) -> Records:
        """Read the records. Raises TrainingError for rows that break the declaration, and for a bundle that exists.

        Before they are read, all that is wrong with what is declared is said at once.
        """
        problems = []
        declared: dict[str, Any] = {}
        parts: tuple[Callable[[], object], ...] = (
            lambda: self.lineage_name,
            lambda: declared.update(self._declared()),
            self._check_new,
        )
        for part in parts:
            try:
                part()
            except TrainingError as error:
                problems.append(str(error))
        if problems:
            raise TrainingError("\n".join(problems))
        return self.read(self.data, "--data", clip=self.clip, unit=self.unit, engine=self.engine, **declared)

    def _declared(self) -> dict[str, Any]:
        """Return what is declared of the records. Raises TrainingError for too little, and for what it cannot be."""
        names, values = self.declared_classes()
        schema = self.declared_schema()
        if self.data != "digits" and not names and schema is None:
            raise TrainingError(
                "declare the class names with --classes a,b,..., or the table with --schema FILE: a list read off the "
                "private records would say which classes occur in them"
            )
        return {"classes": names, "values": values, "bounds": self.bounds or (), "schema": schema}

    def _check_new(self) -> None:
        if self.out.exists():
            raise TrainingError(
                f"{self.out} exists already; a bundle is never overwritten, so name a new one with --out"
            )

    def declared_classes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the declared names of the classes, and what each is called in the records; two empty ones for none."""
        return parse_classes(self.classes) if self.classes else ((), ())

    def declared_schema(self) -> Schema | None:
        """Return the schema, if there is one. Raises BadParameter beside what it takes the place of."""
        if self.schema_file is None:
            return None
        for flag, given in (("--classes", self.classes), ("--bounds", self.bounds)):
            if given:
                raise typer.BadParameter(f"takes the place of {flag}: leave that out", param_hint="--schema")
        if self.data == "digits":
            raise typer.BadParameter("describes a table of your own, not digits", param_hint="--schema")
        return read_schema(self.schema_file)


class FeatureOptions(Options):
    """The public feature map."""

    features: str = option(
        "auto",
        f"The public feature map: auto, {_KINDS}. auto: hog with --image-shape, otherwise "
        f"bins of each number for tables of up to {rules.MOST_BINNED} numbers and rows of length 1 for others; "
        "with --clip-norm or --bias, identity.",
        panel=FEATURES,
        complete=options.feature_names,
    )
    image_shape: str | None = IMAGE_SHAPE(panel=FEATURES)
    cross: list[str] | None = option(
        None,
        "COLUMN:COLUMN, bins: what two columns say together, by levels and 8ths of a number's range; repeatable. "
        "Yours to declare, not read off the records.",
        panel=FEATURES,
    )
    bias: float = option(0.0, "The constant coordinate of phi, from 0 to below 1.", panel=FEATURES)
    clip_norm: float | None = option(
        None,
        "Scaled rows, or an encoder's features, longer than this are scaled down to it.",
        panel=FEATURES,
        default_text="half the square root of their number; of a schema's columns about their usual length",
    )
    random_features: int = option(1000, "fourier, relu: how many.", panel=FEATURES)
    bandwidth: float = option(0.5, "fourier: the kernel's width, in units of the unit ball.", panel=FEATURES)
    seed: int = option(0, "Of the random features: public.", panel=FEATURES, ge=0)

    def shared(self, declaration: Declaration) -> dict[str, Any]:
        """Return the parameters that every map has."""
        limits = {"lower": declaration.lower, "upper": declaration.upper}
        return limits | {"clip_norm": self.clip_norm, "bias": self.bias, "columns": declaration.columns}

    def feature_map(self, declaration: Declaration) -> FeatureMap:
        """Return the map. Raises TrainingError for a kind or a parameter that there is not."""
        shape = None if self.image_shape is None else image_shape(self.image_shape, declaration.features)
        if self.features == "auto" and self.clip_norm is None and not self.bias:
            chosen = rules.feature_map("identity", declaration, shape)
            return crossed(chosen, declaration, self.cross or ())
        kind = "identity" if self.features == "auto" else self.features
        if kind not in FEATURE_MAPS:
            raise TrainingError(f"--features takes auto, {_KINDS}, not {kind!r}")
        made, own = FEATURE_MAPS[kind], own_fields(FEATURE_MAPS[kind])
        if (shape is None) != ("image_shape" not in own):
            raise TrainingError(
                "--features hog and --image-shape HEIGHT,WIDTH or HEIGHT,WIDTH,CHANNELS go together"
                + ("; --clip-norm and --bias go with --features" if self.features == "auto" else "")
            )
        options = [name for name in own if name in FeatureOptions.model_fields]
        given = self.shared(declaration) | {name: getattr(self, name) for name in options}
        if "image_shape" in own:
            given["image_shape"] = shape
        if not made.model_fields["clip_norm"].is_required():
            del given["clip_norm"]
        elif self.clip_norm is None:
            columns = declaration.columns
            given["clip_norm"] = usual_norm(columns) if columns else default_clip_norm(declaration.features)
        try:
            return crossed(made.model_validate(given), declaration, self.cross or ())
        except ValidationError as error:
            first = error.errors()[0]
            if not first["loc"]:  # the map as a whole, and not an option of it
                raise TrainingError(f"--features {kind}: {first['msg'].removeprefix('Value error, ')}") from error
            flag = str(first["loc"][0]).replace("_", "-")
            raise TrainingError(f"--{flag}: {first['msg'].lower()}, not {first['input']!r}") from error


def crossed(feature_map: FeatureMap, declaration: Declaration, crosses: Sequence[str]) -> FeatureMap:
    """Return a map with crosses of two columns, each as COLUMN:COLUMN. Raises TrainingError for what cannot be."""
    if not crosses:
        return feature_map
    if not isinstance(feature_map, Bins):
        raise TrainingError("--cross goes with --features bins, and these are not")
    names = [column.name for column in declaration.columns] or [*declaration.feature_names]
    pairs = [_pair(cross, names) for cross in crosses]
    try:
        return Bins.model_validate(feature_map.model_dump() | {"crosses": tuple(pairs)})
    except ValidationError as error:
        raise TrainingError(f"--cross: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error


def _pair(cross: str, names: Sequence[str]) -> tuple[int, int]:
    """Return the places of two columns. A name may have a colon."""
    parts = cross.split(":")
    splits = [(":".join(parts[:at]), ":".join(parts[at:])) for at in range(1, len(parts))]
    found = [(names.index(one), names.index(other)) for one, other in splits if one in names and other in names]
    if not splits or not all(splits[0]):
        raise TrainingError(f"--cross takes COLUMN:COLUMN, not {cross!r}")
    if len(found) != 1:
        unknown = next((each for each in splits[0] if each not in names), cross)
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        raise TrainingError(f"--cross {cross}: there is no column {unknown!r}; there are {shown}")
    return found[0]


class EncoderOptions(Options):
    """A public ONNX model in place of a feature map."""

    encoder: Path | None = option(
        None,
        "FILE.onnx, a public model made without these records, whose first output is the features, in place of "
        "--features. A row's values are its inputs.",
        panel=ENCODER,
    )
    encoder_range: str | None = option(
        None,
        "LOW:HIGH, what --bounds are scaled to for the encoder, as 0:1.",
        panel=ENCODER,
        default_text="the range that the model's metadata gives for pixels, or values as they are",
    )
    device: str | None = option(None, "Where it computes: cpu or cuda.", panel=ENCODER, default_text="cpu")

    def content(self) -> bytes | None:
        """Return the model's file, or None. Raises BadParameter for options of a model that is not named, OSError."""
        if self.encoder is None and (self.encoder_range is not None or self.device is not None):
            flag = "--encoder-range" if self.encoder_range else "--device"
            raise typer.BadParameter("goes with --encoder", param_hint=flag)
        return None if self.encoder is None else self.encoder.read_bytes()

    def feature_map(self, content: bytes, shared: Mapping[str, Any]) -> Encoder:
        """Return the feature map of an ONNX file, computing rows apart from each other; it shows how far it is.

        shared: what every map has; a `clip_norm` of None becomes half the norm of the all-ones features. Raises
        TrainingError for a model that does not fit.
        """
        encoder, scaled = OnnxEncoder(content, len(shared["lower"]), self.device or "cpu"), self.encoder_range

        def compute(rows: Floats) -> Singles:
            # Rows are computed apart from each other, so that nothing changes where they come in parts.
            parts = []
            with steps_with_progress(len(rows), "features") as done:
                for start in range(0, len(rows), _ROWS_IN_A_PART):
                    parts.append(encoder.apart(rows[start : start + _ROWS_IN_A_PART]))
                    done(min(start + _ROWS_IN_A_PART, len(rows)))
            return np.concatenate(parts)

        try:
            parameters = {
                "input_range": tuple(map(float, scaled.split(":"))) if scaled is not None else encoder.input_range,
                "clip_norm": default_clip_norm(encoder.width) if shared["clip_norm"] is None else shared["clip_norm"],
                "width": encoder.width,
                "model_sha256": hashlib.sha256(content).hexdigest(),
            }
            return Encoder.model_validate({**shared, **parameters}).computed_by(compute)
        except ValueError as error:
            raise TrainingError(f"--encoder-range or --clip-norm: {one_line(error)}") from error


class ChoosingOptions(Options):
    """What the planner chooses a mechanism by, or the options of a release."""

    budget: str | None = option(
        None,
        "Let the planner choose the mechanism, or with --release its options: what all answers together may cost, as "
        "--price, with --records-declared.",
        panel=CHOOSING,
    )
    queries: int | None = option(None, "How many answers it is for.", panel=CHOOSING, default_text="no end", ge=1)
    public: str | None = option(
        None, "FILE of public rows like yours, to simulate on.", panel=CHOOSING, default_text="none, a rule"
    )


def train(
    new: NewBundle,
    map_: FeatureOptions,
    release: ReleaseOptions,
    choosing: ChoosingOptions,
    choice: ChoiceOptions,
    network: EncoderOptions,
) -> None:
    """Train a model on private records and write a bundle: the weights and what is proved about them.

    Without --release each answer gets noise of its own and is paid for. With it the model is private itself: a
    pay-once model, with unlimited answers. An option that begins with the name of a release goes with that one.
    """
    written, warning = trained(new, map_, release, choosing, choice, network)
    budget, queries = choosing.budget, choosing.queries
    per_answer, opening = answers_hint(budget, queries) if budget and queries else (None, _PER_ANSWER)
    if isinstance(written, ReleaseCertificate):
        per_answer, opening = None, budget_hint(written, (release.tier or [release.price or budget or ""])[-1])
    print_certificate(stdout_console(), written)
    typer.echo(f"Wrote the bundle {new.out}. {next_step(new.out, written, opening, per_answer, warning)}")


def trained(
    new: NewBundle,
    map_: FeatureOptions,
    release: ReleaseOptions,
    choosing: ChoosingOptions,
    choice: ChoiceOptions,
    network: EncoderOptions,
) -> tuple[Certified, str | None]:
    """Train what is asked for, write the bundle, and note its records in the lineage.

    Returns its certificate, and the warning of a second budget, if there is one. Raises BadParameter for options that
    do not go together, and TrainingError.
    """
    kind, budget, queries = release.release, choosing.budget, choosing.queries
    if new.engine != LOCAL and (not new.engine.startswith("ray") or kind == "teachers" or budget or network.encoder):
        raise typer.BadParameter(
            "takes local, ray or ray://HOST:PORT; on Ray neither --release teachers, --budget nor --encoder",
            param_hint="--engine",
        )
    if new.unit is not None and (kind == "objective" or budget is not None):
        raise typer.BadParameter(
            NO_UNITS
            if kind == "objective"
            else "does not go with --budget: what it chooses by simulates single "
            "records. Name a --release and its --price",
            param_hint="--unit",
        )
    records = new.records()
    content = network.content()
    if content is not None:
        if kind or budget or map_.image_shape or map_.cross or map_.features not in ("auto", "identity"):
            raise typer.BadParameter(
                "goes with none of --features, --image-shape, --cross, --release and --budget", param_hint="--encoder"
            )
        feature_map: FeatureMap = network.feature_map(content, map_.shared(records.declaration))
    else:
        feature_map = map_.feature_map(records.declaration)
    with _noted(new, records) as warning:
        training = Training(records, new.model_name, new.lineage_name, feature_map, new.out, release.given())
        if choice.choose is not None and (budget is not None or new.unit is not None or new.engine != LOCAL):
            raise typer.BadParameter("goes with none of --budget, --unit and --engine", param_hint="--choose")
        training = with_choice(training, choice, kind)
        if budget is not None:
            # A simulation needs what training needs and more, which other commands should not wait for.
            from dpserve.commands.planning import followed

            _check_features_are_free(map_, kind)
            kind, training = followed(training, kind, budget, queries, _public_rows(new, choosing, kind, records))
        elif queries is not None or choosing.public is not None:
            raise typer.BadParameter("goes with --budget", param_hint="--public" if queries is None else "--queries")
        if kind is not None:
            return train_release(kind, training), warning
        check_options(None, training.options)
        return _train_head(training, content), warning


def _train_head(training: Training, encoder: bytes | None) -> Certificate:
    return save_bundle(
        training.out, train_with_progress(training.records, training.recipe(), training.lineage), encoder
    )


def _check_features_are_free(given: FeatureOptions, kind: str | None) -> None:
    """Raise BadParameter for options of a feature map in whose place the planner's rules would put their own.

    The rules have two maps of their own, and an owner who names the release chooses between these: `auto`, `fourier`.
    Images have a third, by their shape.
    """
    for name, field in FeatureOptions.model_fields.items():
        value, free = getattr(given, name), {field.get_default()}
        if name == "cross":
            value = tuple(value or ()) or None
        if name == "image_shape":
            free.add(value)
        elif name == "features":
            free |= {"hog"} if given.image_shape else {"fourier"} if kind is not None else set()
        if value not in free:
            raise typer.BadParameter(
                f"chooses {'the options' if kind else 'the mechanism and its options'}: leave "
                f"--{name.replace('_', '-')} out. Its rules are for auto and fourier features",
                param_hint="--budget",
            )


def _public_rows(new: NewBundle, choosing: ChoosingOptions, kind: str | None, private: Records) -> Records | None:
    """Return the public rows to simulate on, by the declaration of the private records. None for none.

    Raises BadParameter where the owner names the release, and TrainingError for rows that are private records.
    """
    if choosing.public is None:
        return None
    if kind is not None:
        raise typer.BadParameter("chooses the mechanism: leave --release out", param_hint="--public")
    declared = private.declaration
    found = new.read_like(
        choosing.public,
        declared.feature_names,
        declared.lower,
        declared.upper,
        declared.classes,
        new.classes,
        declared.columns,
    )
    known = KnownRecords(state_folder())
    same = len(np.intersect1d(known.digests(found).records, known.digests(private).records))
    if shared := max(rows_in_both(found, private), same):
        raise TrainingError(
            f"{choosing.public} holds private records, {shared:,} of its rows: what a simulation on them tells is not "
            "covered by any budget. Put rows that are public into a file of their own"
        )
    return found


def rows_in_both(rows: Records, private: Records) -> int:
    """Return how many of the rows are, in their columns and label, private records."""
    known = {row.tobytes() + label.tobytes() for row, label in zip(private.X, private.y, strict=True)}
    return sum(row.tobytes() + label.tobytes() in known for row, label in zip(rows.X, rows.y, strict=True))


class PublishedOptions(Options):
    """How a network is trained as Lu et al. 2022 do."""

    hidden: list[int] | None = option(None, "A hidden layer's width; repeatable.", default_text="128")
    alpha: float = option(1.0, "The strength of the convexified loss.")
    epochs: int = option(100, "Passes over the records.", ge=1)
    seed: int = option(0, "Of the first weights and the order of the records.", ge=0)


def train_published(new: NewBundle, network: PublishedOptions) -> None:
    """Train a deep network as Lu et al. 2022 do. UNPROVEN: no mechanism with a proof can serve it."""
    for flag, given in (("--unit", new.unit is not None), ("--engine", new.engine != LOCAL)):
        if given:
            raise typer.BadParameter("does not go with a network as Lu et al. train it", param_hint=flag)
    with extra("torch", "training networks"):
        from training.published.train import train_published as train_network

    records = new.records()
    if records.declaration.columns:
        raise typer.BadParameter(
            "does not go with a network as Lu et al. train it: its input is numbers", param_hint="--schema"
        )
    with _noted(new, records):
        trained = train_network(
            records,
            new.model_name,
            new.lineage_name,
            hidden=tuple(network.hidden or [128]),
            alpha=network.alpha,
            epochs=network.epochs,
            seed=network.seed,
        )
        certificate = save_published(new.out, trained)
    lines = (f"Wrote the bundle {new.out}: {certificate.status}.", *certificate.objections)
    stdout_console().print("\n - ".join(lines), highlight=False)


@contextmanager
def _noted(new: NewBundle, records: Records) -> Iterator[str | None]:
    """Note in the block, and for good if it ends well, that records are in a lineage.

    Yields the warning of a second budget, which is printed, if there is one. Raises TrainingError for records, or
    units, that are in another lineage, unless the owner accepts that.
    """
    known, lineage = KnownRecords(state_folder()), new.lineage_name
    digests = known.digests(records)
    with known.noted(lineage, digests) as elsewhere:
        if not elsewhere:
            yield None
            return
        said = overlap(lineage, digests, elsewhere)
        if not new.overlapping_lineage_is_accepted:
            raise TrainingError(
                f"{said} To keep one budget, train with --lineage {next(iter(elsewhere))}. To open a second one all "
                "the same, add --overlapping-lineage-is-accepted"
            )
        warning = f"WARNING: A SECOND BUDGET FOR THE SAME RECORDS. {said}"
        typer.echo(warning, err=True)
        yield warning


def next_step(
    out: Path, certificate: Certified, opening: str, price: str | None = None, warning: str | None = None
) -> str:
    """Return the command that serves a bundle, with a budget only where the lineage has none yet.

    opening: the options that open the lineage. price: those that price an answer. warning: of a second budget.
    Where the lineage's budget is there and cannot pay for a release, say so instead: whether it may learn more is the
    owner's to decide. So is whether the same records get a second budget.
    """
    serve = " ".join(filter(None, ("dpserve serve", str(out), price)))
    try:
        has_budget, others = asyncio.run(_budgets(certificate))
    except CannotServe as refusal:
        return f"Its records' lineage has a budget already, which does not pay for this one. {_capital(str(refusal))}"
    except (LedgerError, OSError, ValueError, typer.BadParameter) as error:
        return (
            f"Next: {serve} {opening}\nThe ledger could not be asked whether the lineage has a budget already; if it "
            f"has, leave {opening} out. ({error})"
        )
    if has_budget:
        return f"Next: {serve}"
    if warning:
        return f"{warning}\nOnly if these records shall have a second budget: {serve} {opening}"
    if others:
        return (
            f"Next: {serve} {opening}\nThis opens a budget for {certificate.lineage!r} in addition to those of "
            f"{', '.join(map(repr, others))}. If any record is also in one of them, train with --lineage and its name "
            "instead."
        )
    return f"Next: {serve} {opening}"


async def _budgets(certificate: Certified) -> tuple[bool, list[str]]:
    """Return whether the lineage has an account, and which others have one.

    Raises CannotServe where the lineage's cannot pay for a release.
    """
    location = options.ledger_location(os.environ.get("DPSERVE_LEDGER"))
    if "://" not in location and not Path(location).exists():
        return False, []  # and looking makes none
    async with Ledger.open(location) as ledger:
        others = [each.lineage for each in await ledger.lineages() if each.lineage != certificate.lineage]
        try:
            await ledger.lineage(certificate.lineage)
        except UnknownLineage:
            return False, others
        if isinstance(certificate, ReleaseCertificate):
            # Who trains without a ledger should not wait for what serves.
            from service.opening import check_release

            await check_release(ledger, certificate)
    return True, others


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
