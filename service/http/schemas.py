"""The bodies of requests and answers: read and written by msgspec, and shown with what is said here of each field."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field
from starlette.responses import Response

from dpserve.accounting.disclosure import Asked, Declared, Disclosed, Released
from dpserve.service.http.problems import MEDIA_TYPE, ProblemOut

Cell = str | float | bool | None
"""A value of a row by name."""


class AnswerOptions(Struct, forbid_unknown_fields=True):
    """Options of an answer, beside the rows."""

    noise: bool = False
    """true: say in `noise` how far noise may have moved the answers. It costs nothing, and triples the numbers of an
    answer."""
    coverage: float | None = None
    """The coverage of `prediction_sets`, which are then said, too, where the model has them: 0.5 to 0.999, rounded up
    to thousandths. They cost nothing."""
    clip: bool | None = None
    """true: clip values beyond the declared bounds to them; false: refuse them. By default as in training: the
    model's `clips`. A row that was clipped has the answer, and the price, of the row that it becomes."""


class PredictOptions(AnswerOptions):
    """Members of a request beside its rows."""

    model: str | None = None
    """The model's name; may be left out."""


class PredictRequest(PredictOptions, kw_only=True):
    """Rows to be answered: all of them or none."""

    instances: list[list[float] | dict[str, Cell]]
    """Each row as an object with a value for each column of the model, or as a list of numbers in the order of the
    model's feature names."""


class ReceiptOut(Disclosed, Struct):
    """The charge for this request."""

    id: Asked[int | None]
    """The receipt's number; null if nothing was charged."""
    model: Asked[str]
    mechanism: Asked[str]
    status: Asked[str]
    """Whether the mechanism's guarantee is proven."""
    rows: Asked[int]
    charged_rows: Asked[int]
    """Questions that were new to you, and were charged."""
    replayed_rows: Asked[int]
    """Rows that you had paid for before: the same answers, at no cost."""
    currency: Asked[Literal["rho", "epsilon"]]
    """The currency of your account, zCDP rho or pure epsilon; amounts here are in it."""
    price_per_row: Asked[float]
    charged: Asked[float]


class BudgetOut(Disclosed, Struct):
    """Your account as this answer left it. `GET /budget` says what that means."""

    currency: Asked[Literal["rho", "epsilon"]]
    """The currency of your account, zCDP rho or pure epsilon; amounts here are in it."""
    limit: Asked[float]
    spent: Asked[float]
    remaining: Asked[float]
    queries_left: Asked[int | None]
    """Rows that can still be answered at the price; null where an answer costs nothing."""
    unlimited: Asked[bool]
    """Whether further answers cost nothing: of a pay-once model, once you have paid for it."""
    status: Asked[Literal["proven", "unproven"]]
    """unproven: the account may have paid for a mechanism whose cost is only claimed."""


class AnswerNoiseOut(Disclosed, Struct, kw_only=True):
    """The law of the noise on the answers, and bounds on how far it may have moved them."""

    law: Declared[str | None]
    """gaussian, laplace, exponential, permute-and-flip, or the law of a mechanism that another package brings. Null
    where it is not known by which law noise moves an answer; `no_interval` says why."""
    on: Declared[Literal["logits", "log-odds", "selection", "answer"] | None]
    """The quantity that has noise: each logit; the log-odds of the one class that was drawn; the choice of the class;
    or a number that is the answer itself."""
    scale: Annotated[list[float] | None, Released("answer")]
    """For each row the standard deviation of Gaussian noise, the largest where the classes' differ; the scale b of
    Laplace noise, e^(-|x|/b) / 2b; or the s by which a class is drawn in proportion to e^(its logit / s)."""
    no_interval: Declared[str | None]
    """Why no interval can be given, in words; null where there is one."""
    coverage: Declared[float]
    """The least probability, over draws of the noise, that an interval is right, and that an answer is undecided or
    names the class that is likeliest without noise. It is an average over draws of the noise, and of a pay-once
    model over models drawn: the model served may do worse, in all its answers together. Nor is it said of decided
    answers alone: where a share d of answers is decided, up to (1 - coverage)/d of these may name another class."""
    undecided: Annotated[list[bool] | UnsetType, Released("answer")] = UNSET
    """For each row whether the noise could have made the likeliest class so. See `coverage` for what is true of the
    others. Absent where that is not known, and where an answer is no probabilities of classes."""
    lower: Annotated[list[list[float]] | None, Released("answer")]
    """For each row and class the least of the probabilities without noise; null where `no_interval` says why."""
    upper: Annotated[list[list[float]] | None, Released("answer")]
    """Likewise the largest."""


class PredictionSetsOut(Disclosed, Struct):
    """Sets of classes that hold the true one with a coverage: of further records like the training's, a share of at
    least so many. The promise is for a coverage chosen without looking at the sets, and for no single row."""

    coverage: Asked[float]
    by: Declared[Literal["all", "class"]]
    """Whether the coverage is that of all records together, or also of the records of each class."""
    least: Annotated[list[float], Released("counts")]
    """The least probability with which each class is in a set, in the order of the model's classes."""
    classes: Annotated[list[list[str]], Released("answer")]
    """The classes in each row's set, by name. An empty one says that none reaches the probability that so
    many records had for their own class: the row is unlike them, or lies between classes."""


class PredictResponse(Disclosed, Struct):
    """Private answers, and what they cost."""

    predictions: Annotated[list[list[float] | dict[str, float | list[float]]], Released("answer")]
    """For each row the probability of each class, in the order of the model's classes; of a model with other outputs an
    object by their names, as `GET /models/{name}` lists them."""
    receipt: Asked[ReceiptOut]
    budget: Asked[BudgetOut]
    noise: Declared[AnswerNoiseOut | UnsetType] = UNSET
    """Absent unless `noise` is asked for."""
    prediction_sets: Asked[PredictionSetsOut | UnsetType] = UNSET
    """Absent unless a `coverage` is asked for."""
    rehearsal: Declared[bool | UnsetType] = UNSET
    """True where the ledger may lose charges, so that nothing here is to be relied upon."""


class QuoteOut(Disclosed, Struct):
    """The cost of a request now. Asking spends nothing, and promises nothing: others may ask first."""

    rows: Asked[int]
    new_rows: Asked[int]
    free: Asked[tuple[bool, ...]]
    """For each row whether it would cost nothing: you paid for it already, or it occurs earlier in the request. Whether
    you paid for a row that a deep network encodes is not looked up: it counts as new, and `cost` is the most it costs.
    """
    currency: Asked[Literal["rho", "epsilon"]]
    """The currency of your account, zCDP rho or pure epsilon; amounts here are in it."""
    price_per_row: Asked[float]
    cost: Asked[float]
    """The price of the rows that are new to you; of a pay-once model the model's, 0 once you have paid for it."""
    shown_cost: Asked[float | None]
    """The growth of your account in the currency in which a person reads it, which `GET /budget` calls `shown_in`; null
    where it never pays for such an answer. An epsilon at a delta grows less the more was spent."""
    admitted: Asked[bool]
    refusal: Asked[str | None]
    """The type of problem that the request would be refused with."""
    scope: Asked[str | None]
    """The account that would refuse it: client, group or lineage."""


class QuoteResponse(Disclosed, Struct):
    """The answer to a dry run."""

    quote: Asked[QuoteOut]
    rehearsal: Declared[bool | UnsetType] = UNSET


Parameter = str | int | float | bool


class RequestedOutput(Struct):
    """A tensor that is wished for."""

    name: str
    parameters: dict[str, Any] = {}


class InputTensor(Struct):
    """Rows to be answered, as `[rows, features]`: all of them or none."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: Raw = field(default_factory=Raw)
    """Numbers, flat or in a list for each row; absent where `parameters` has a `binary_data_size`."""


class InferRequest(Struct):
    """A request for inference."""

    inputs: list[InputTensor]
    id: str | None = None
    parameters: dict[str, Any] = {}
    outputs: list[RequestedOutput] = []


class OutputTensor(Disclosed, Struct):
    """Private answers: `probabilities`, one for each class and row; and how noisy they are.

    Where the parameter `noise` is true, or the request names them, `lower` and `upper` are the ends of an interval for
    each probability, and `undecided` says of each row whether the noise could have made its likeliest class so. Both
    are right with a probability of at least 95 % over draws of the noise, and of a pay-once model over models drawn;
    not for one model, nor among decided answers alone.
    """

    name: Declared[str]
    datatype: Declared[str]
    shape: Asked[tuple[int, ...]]
    data: Annotated[list[float | bool] | UnsetType, Released("answer")] = UNSET
    parameters: Declared[dict[str, Parameter] | UnsetType] = UNSET


class InferResponse(Disclosed, Struct):
    """Private answers, with what they cost and what is left in `parameters`."""

    model_name: Declared[str]
    model_version: Declared[str]
    parameters: Annotated[dict[str, Parameter], Released("answer")]
    outputs: Declared[list[OutputTensor]]
    id: Asked[str | UnsetType] = UNSET


class ClientReceiptOut(Disclosed, Struct):
    """One charge to the client's account."""

    id: Asked[int]
    model: Asked[str | None]
    """The name of the model that answered; null where it is not served any more."""
    model_id: Asked[str]
    """The id of the model that answered; `GET /models/{name}` shows each model's."""
    mechanism: Asked[str]
    charged_rows: Asked[int]
    currency: Asked[Literal["rho", "epsilon"]]
    """The account's currency; amounts here are in it."""
    price_per_row: Asked[float]
    charged: Asked[float]
    time: Asked[float]
    """Seconds since the epoch."""
    hash: Asked[str]
    """SHA-256 of what the receipt says. Keep it: the owner's check finds a receipt that was altered or removed."""
    blocks: Asked[tuple[str, ...] | UnsetType] = UNSET
    """The blocks of records that the model was trained on, each of which paid, too; absent where it has none."""


class ReceiptsOut(Disclosed, Struct):
    """A page of receipts, oldest first."""

    receipts: Asked[list[ClientReceiptOut]]
    next_after: Asked[int | None]
    """Ask for the next page with this as `after`; null if there is none."""


class ModelsOut(Disclosed, Struct, omit_defaults=True):
    """The models by name. default: the one that is asked where the path names none; null where there is none.

    units: for each model that protects all records of one unit together, the column that names the unit.
    """

    models: Declared[list[str]]
    default: Declared[str | None]
    units: Declared[dict[str, str]] = {}


class AccountModelsOut(Disclosed, Struct):
    """The models that a credential is good for, by name. default: the one to show first."""

    models: Declared[list[str]]
    default: Declared[str]


class ServerMetadata(Disclosed, Struct):
    """The server's name, version and extensions."""

    name: Declared[str]
    version: Declared[str]
    extensions: Declared[list[str]]


class TensorMetadata(Disclosed, Struct):
    """A tensor that a model takes or gives; -1 for any number of rows."""

    name: Declared[str]
    datatype: Declared[str]
    shape: Declared[list[int]]


class ModelReady(Disclosed, Struct):
    """Whether a model can be asked."""

    name: Declared[str]
    ready: Asked[bool]


class ModelMetadata(Disclosed, Struct):
    """A model's inputs, outputs and price."""

    name: Declared[str]
    versions: Declared[list[str]]
    platform: Declared[str]
    inputs: Declared[list[TensorMetadata]]
    outputs: Declared[list[TensorMetadata]]
    parameters: Declared[dict[str, Parameter]]


class ModelIndex(Disclosed, Struct):
    """A model that is served."""

    name: Declared[str]
    version: Declared[str]
    state: Asked[str]
    reason: Asked[str]


class TensorConfig(Disclosed, Struct):
    """A tensor, its number of rows apart."""

    name: Declared[str]
    data_type: Declared[str]
    dims: Declared[list[int]]


class ModelConfig(Disclosed, Struct):
    """A model's configuration."""

    name: Declared[str]
    platform: Declared[str]
    backend: Declared[str]
    max_batch_size: Declared[int]
    input: Declared[list[TensorConfig]]
    output: Declared[list[TensorConfig]]


class ErrorOut(Disclosed, Struct):
    """An error of the Open Inference Protocol; its type stands in the header `dpserve-problem`."""

    error: Asked[str]


class NoiseHeaderOut(Disclosed, Struct, kw_only=True):
    """The header `dpserve-noise`, of all rows: the fields of `AnswerNoiseOut`, each of the largest."""

    law: Declared[str | None]
    on: Declared[str | None]
    scale: Annotated[float | None, Released("answer")]
    coverage: Declared[float]
    above: Annotated[float | None, Released("answer")]
    below: Annotated[float | None, Released("answer")]
    undecided: Annotated[str | None, Released("answer")]
    no_interval: Declared[str | None]


class LiveOut(Disclosed, Struct):
    """Whether the process answers."""

    status: Declared[Literal["live"]] = "live"


class ReadyOut(Disclosed, Struct):
    """Whether the service can charge and answer."""

    status: Asked[Literal["ready"]] = "ready"
    rehearsal: Declared[bool | UnsetType] = UNSET


COMPONENTS = "#/components/schemas/{name}"
"""Where the OpenAPI document has the schemas."""

_, _problem = msgspec.json.schema_components([ProblemOut])
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "default": {"description": "A problem (RFC 9457)", "content": {MEDIA_TYPE: {"schema": _problem["ProblemOut"]}}}
}
"""The OpenAPI document's entry for every status that a route does not name."""


class Json(Response):
    """A route's answer: a Struct, or some in a list."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return msgspec.json.encode(content)


def answers(kind: Any) -> dict[int | str, dict[str, Any]]:
    """Return what the OpenAPI document says of a route that answers with this, for the route's `responses`."""
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=COMPONENTS)
    return {200: {"description": "The answer", "content": {"application/json": {"schema": schema}}}}
