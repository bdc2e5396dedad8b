"""Teachers: networks on disjoint parts of the records; each answer of their mean gets noise and is paid for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from training.errors import TrainingError
from training.inputs.lineage import owner_key
from training.kinds.figures import Figures
from training.kinds.kind import Job, MeteredKind
from training.kinds.likeness import Likeness, network_likeness
from training.kinds.options import Declared, Options
from training.kinds.planned import PlannedOption
from training.kinds.shared_options import Activation, widths
from training.kinds.teachers.certificate import MOST_TEACHERS

if TYPE_CHECKING:
    from training.kinds.teachers.bundle import Teachers
    from training.kinds.teachers.certificate import TeachersCertificate


@dataclass(frozen=True, kw_only=True)
class TeachersOptions(Options):
    """The options of teachers."""

    teachers: Annotated[
        int, Declared("How many teachers, each trained on a part of the records.", least=2, most=MOST_TEACHERS)
    ] = 250
    rule: Annotated[Literal["votes", "probabilities"], Declared("What a teacher says of a row.")] = "votes"
    hidden: Annotated[
        tuple[int, ...], Declared("The width of each hidden layer.", unit="units", least=0, default_text="none")
    ] = ()
    activation: Annotated[Activation, Declared("What hidden units compute: tanh or relu.")] = "tanh"
    steps: Annotated[int, Declared("How many steps.", least=1)] = 400
    learning_rate: Annotated[float, Declared("The learning rate.", above=0)] = 0.003


class TeachersKind(MeteredKind):
    """Teachers."""

    name = "teachers"
    sentence = "networks on disjoint parts of the records, each of whose mean answers gets noise and is paid for"
    options = TeachersOptions
    asked_by = "teachers"
    beside_budget = ("teachers",)
    lacks = {  # noqa: RUF012 - a constant of the class
        **MeteredKind.lacks,
        "audit": "the search for the strongest row is proved for the features of a head",
        "ray": "teachers are trained on one machine: their parts are found by a hash of each record",
        "encoder": "teachers take the values, scaled by their bounds, and no encoder's features",
    }

    def train(self, job: Job, options: TeachersOptions) -> "TeachersCertificate":
        """Train a teacher on each part and save their weights."""
        from training.kinds.teachers.bundle import save_teachers
        from training.kinds.teachers.networks import Schedule
        from training.kinds.teachers.train import TeachersRecipe, train_teachers

        try:
            schedule = Schedule(steps=options.steps, learning_rate=options.learning_rate, activation=options.activation)
        except ValueError as error:
            raise TrainingError(str(error)) from error
        recipe = TeachersRecipe(
            job.name,
            job.feature_map,
            teachers=options.teachers,
            hidden=widths(options.hidden),
            rule=options.rule,
            schedule=schedule,
        )
        key = owner_key(job.state / "lineage.key")
        with job.progress.steps_with_progress(schedule.steps) as report:
            return save_teachers(job.out, train_teachers(job.records, recipe, job.lineage, key, report))

    @property
    def planned(self) -> Sequence[PlannedOption]:
        """Return the options that the planner may recommend."""
        from training.kinds.teachers.planned import PLANNED

        return PLANNED

    def likeness(self, public: Mapping[str, Any], records: int) -> Likeness:
        """Return the likeness of its network."""
        del records
        return network_likeness(public)

    def load(self, folder: Path, device: str | None) -> "Teachers":
        """Read and verify teachers."""
        from training.kinds.teachers.bundle import load_teachers

        return load_teachers(folder, device)

    def figures(self, certificate: "TeachersCertificate") -> Figures:
        """Return what the teachers are, and how far one record moves their mean."""
        layers = " -> ".join(map(str, certificate.widths))
        return [
            ("teachers", f"{certificate.teachers}, on disjoint parts {certificate.parts}"),
            ("each of them", f"{layers}, {certificate.activation}"),
            ("what each says", certificate.rule),
            ("sensitivity of the mean, in L2", f"{certificate.logit_sensitivity:.6g}"),
        ]


KIND = TeachersKind()
