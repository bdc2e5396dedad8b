"""Everything that leaves a training or a service, by who reads it: the one list of what `disclosed_fields` is asked of.

A test holds the list to every class of `Disclosed`, and every struct of replies to be one. gRPC has the messages of
`/v2`; the headers `dpserve-receipt` and `dpserve-budget` have those members of `POST /predict`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dpserve.accounting.disclosure import Disclosed, DisclosedField, Reader, disclosed_fields
from dpserve.accounting.explanation import AccountExplanation, AnsweredExplanation
from dpserve.audit.reports import Report
from dpserve.plans import Plan
from dpserve.service.admin.acts import ActOut
from dpserve.service.admin.app import BlocksOut, ChargedModelsOut, ClientOut, ClientsOut, GroupOut, LineageOut
from dpserve.service.http import schemas
from dpserve.service.http.problems import ProblemOut
from dpserve.service.pay_once import PayOnceExplanation
from dpserve.service.predictor import ServedModel
from dpserve.service.telemetry.logs import LogLine
from dpserve.service.telemetry.metrics import METRICS
from dpserve.service.telemetry.tracing import ATTRIBUTES
from dpserve.training.evaluated_sets import CoverageAt
from dpserve.training.evaluation import CalibrationBin, Evaluation
from dpserve.training.export.files import Exported
from dpserve.training.kinds.registry import all_kinds
from dpserve.training.planning.answers import AnswerPlan
from dpserve.training.planning.recommendation import Recommendation
from dpserve.training.planning.retraining import Schedule
from dpserve.training.roc import Areas, Roc


@dataclass(frozen=True)
class Leaving:
    """Something that leaves. reader: who may read it and sees least. kinds: the classes of which it is one.

    filtered: whether `dpserve.accounting.disclosure.shown` leaves out what the reader may not see. Elsewhere no class
    may have such a field.
    """

    where: str
    reader: Reader
    kinds: tuple[type[Disclosed], ...]
    filtered: bool = False

    def fields(self) -> Iterator[DisclosedField]:
        """Yield the fields that the reader sees, each path once."""
        seen = set[DisclosedField]()
        for kind in self.kinds:
            for field in disclosed_fields(kind):
                if field not in seen and (field.disclosure.least <= self.reader or not self.filtered):
                    seen.add(field)
                    yield field


def everything() -> tuple[Leaving, ...]:
    """Return all that leaves, but for metrics and the attributes of spans: `LOOSE` has those."""
    certificates: tuple[type[Disclosed], ...] = tuple(kind.certificate_type for kind in all_kinds().values())
    stranger, client, owner = Reader
    return (
        Leaving("GET /models", stranger, (schemas.ModelsOut,)),
        Leaving("GET /models/NAME", stranger, (*certificates, ServedModel), filtered=True),
        Leaving("GET /livez", stranger, (schemas.LiveOut,)),
        Leaving("GET /readyz", stranger, (schemas.ReadyOut,)),
        Leaving("a refusal", stranger, (ProblemOut, schemas.ErrorOut)),
        Leaving(
            "GET /v2...",
            stranger,
            (
                schemas.ServerMetadata,
                schemas.ModelMetadata,
                schemas.ModelReady,
                schemas.ModelIndex,
                schemas.ModelConfig,
            ),
        ),
        Leaving("POST /predict?dry_run=true", stranger, (schemas.QuoteResponse,)),
        Leaving("GET /account", stranger, (schemas.AccountModelsOut,)),
        Leaving("GET /budget", stranger, (AccountExplanation, PayOnceExplanation)),
        Leaving("GET /budget/receipts", stranger, (schemas.ReceiptsOut,)),
        Leaving("POST /predict", client, (schemas.PredictResponse,)),
        Leaving("header dpserve-noise", client, (schemas.NoiseHeaderOut,)),
        Leaving("POST /v2/models/NAME/infer, and gRPC", client, (schemas.InferResponse,)),
        Leaving("an export: its certificate", client, certificates, filtered=True),
        Leaving("an export: its file", client, (Exported,)),
        Leaving("dpserve evaluate: what is published", client, (Evaluation, CalibrationBin, CoverageAt, Roc, Areas)),
        Leaving("dpserve plan", stranger, (Plan, AnswerPlan, Recommendation, Schedule)),
        Leaving("dpserve explain", stranger, (AnsweredExplanation,)),
        Leaving(
            "the owner's port",
            owner,
            (LineageOut, ClientOut, ClientsOut, GroupOut, BlocksOut, ChargedModelsOut, ActOut),
        ),
        Leaving("a line of the log", owner, (LogLine,)),
        Leaving("certificate.json", owner, certificates),
        Leaving("a report of an attack or an audit", owner, (Report,)),
    )


LOOSE = {"GET /metrics": METRICS, "an attribute of a span": ATTRIBUTES}
"""Single values by name, which the owner reads."""


@dataclass(frozen=True)
class ListedField:
    """One field of all that leaves, in words."""

    where: str
    reader: str
    field: str
    follows_from: str


def listed() -> Iterator[ListedField]:
    """Yield every field that leaves, those that strangers see first."""
    for each in sorted(everything(), key=lambda each: each.reader):
        for field in each.fields():
            yield ListedField(each.where, each.reader.name.lower(), ".".join(field.path), str(field.disclosure))
    for where, values in LOOSE.items():
        for name, disclosure in values.items():
            yield ListedField(where, Reader.OWNER.name.lower(), name, str(disclosure))
