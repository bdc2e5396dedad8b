"""The bodies of requests and answers, as the OpenAPI document shows them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field

from accounting.report import AccountReport
from service.http.problems import MEDIA_TYPE

Row = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], FailFast()]


class PredictRequest(BaseModel):
    """Rows to be answered: all of them or none."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        json_schema_extra={"examples": [{"instances": [[0.0, 1.0, 2.0]]}]},
    )

    instances: Annotated[list[Row], FailFast()]
    """One list of numbers for each row, in the order of the model's feature names."""
    model: str | None = None
    """The model's name; may be left out."""
    tier: str | None = None
    """The precision to be answered at, of a model that is paid for once; by default the finest that you hold, or the
    coarsest offered. Moving to a finer one costs the difference, once."""


class ReceiptOut(BaseModel):
    """What this request was charged."""

    id: int | None
    """The number of the lineage's receipt; null if every row was a replay and nothing was charged."""
    model: str
    mechanism: str
    status: str
    """Whether the mechanism's guarantee is proven."""
    rows: int
    charged_rows: int
    replayed_rows: int
    """Rows of this request that had been paid for before: the stored answers, at no cost."""
    price_per_row_rho: float
    charged_rho: float
    tier: str | None = None
    """The precision that answered, of a model that is paid for once: its answers cost nothing once it is held."""


class PredictResponse(BaseModel):
    """Private answers, and what they cost."""

    predictions: list[list[float]]
    """One probability for each class and row, in the order of the model's classes."""
    receipt: ReceiptOut
    budget: AccountReport
    rehearsal: bool = False
    """True where the ledger may lose charges, so that nothing here is to be relied upon."""


class AnswerNoiseOut(BaseModel):
    """The law of the noise on the answers: public, the same whatever the records are, and what error bars come from."""

    law: Literal["gaussian", "laplace", "exponential"]
    on: Literal["logits", "log-odds", "selection"]
    """What has noise: each logit; the log-odds of the one class that was drawn; or which class is drawn."""
    scale: list[float]
    """For each row the standard deviation of Gaussian noise; the scale b of Laplace noise, e^(-|x|/b) / 2b; or the s by
    which a class is drawn in proportion to e^(its logit / s)."""


class QuoteOut(BaseModel):
    """What a request would cost now. Nothing is spent by asking, and nothing is promised: others may ask first."""

    rows: int
    new_rows: int
    free: list[bool]
    """For each row whether it would cost nothing: it is paid for already, or occurs earlier in the request."""
    price_per_row_rho: float
    cost_rho: float
    admitted: bool
    refusal: str | None
    """The type of problem that the request would be refused with."""
    scope: str | None
    """Whose account would refuse it: client or lineage."""
    noise: AnswerNoiseOut | None
    """Null where it is not known by which law noise moves an answer."""
    tier: str | None = None
    """The precision that would answer, of a model that is paid for once; cost_rho is the difference to what is held."""


class QuoteResponse(BaseModel):
    """What `dry_run` answers."""

    quote: QuoteOut
    rehearsal: bool = False


class ClientReceiptOut(BaseModel):
    """One charge to the client's account."""

    id: int
    model: str
    mechanism: str
    charged_rows: int
    price_per_row_rho: float
    charged_rho: float
    time: float
    """Seconds since the epoch."""
    hash: str
    """The receipt's place in the lineage's chain: keep it, and nobody can take the receipt out unseen."""


class ReceiptsOut(BaseModel):
    """A page of receipts, oldest first."""

    receipts: list[ClientReceiptOut]
    next_after: int | None
    """Ask for the next page with this as `after`; null if there is none."""


class ProblemOut(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str


PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "default": {"model": ProblemOut, "description": "A problem (RFC 9457)", "content": {MEDIA_TYPE: {}}}
}
"""What the OpenAPI document says of every status that a route does not name."""
