"""The questions of a client, and what its answers are made into, without sending: `dpserve.client` sends.

A question is a generator: it yields the words of a request, or seconds to wait, takes what came, and returns a result.
"""

import io
import json
import random
import re
import ssl
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import quote as escaped
from urllib.parse import urlencode

import httpx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpserve.frames import SentRows, rows_to_send

_NPY, _SETS = "application/x-npy", "dpserve-prediction-sets"
_PROBLEM = "urn:dpserve:problem:"
_VISIBLE = re.compile(r"[!-~]{1,8192}")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two tries at most; each pause is a random part of that."""
_LONGEST_WAIT = 60
"""Seconds; whoever is to wait longer for the next request is told so."""


class ServiceError(Exception):
    """The service refused or failed. `kind` is the problem's type, `status` the HTTP status, 0 if none came."""

    def __init__(
        self, detail: str, *, kind: str = "", status: int = 0, problem: Mapping[str, Any] | None = None
    ) -> None:
        """Take what the service said.

        Parameters
        ----------
        detail : str
            The sentence for a person.
        kind : str, default ""
            The problem's type.
        status : int, default 0
            The HTTP status.
        problem : mapping, optional
            The whole problem document.
        """
        super().__init__(detail)
        self.kind = kind
        self.status = status
        self.problem = dict(problem or {})

    def __reduce__(self) -> tuple[object, ...]:
        """Be picklable, so that a worker process can raise it in its parent."""
        return _again, (type(self), str(self), self.kind, self.status, self.problem)


class BudgetExhausted(ServiceError):
    """The request costs more than is left; nothing was charged. `cost` and `remaining` are in the account's `currency`.

    `scope` says whose budget it is: the client's own, its group's, or the lineage's or a block's, which all clients
    share. What is left of those is not said, and `remaining` is None.
    """

    scope: Literal["client", "group", "lineage", "block"]
    cost: float
    currency: Literal["rho", "epsilon"]
    remaining: float | None

    def __init__(self, detail: str, **fields: Any) -> None:
        """Take the numbers from the problem document.

        Parameters
        ----------
        detail : str
            The sentence for a person.
        fields : object
            What `ServiceError` takes.
        """
        super().__init__(detail, **fields)
        self.scope = self.problem["scope"]
        self.cost, self.currency = self.problem["cost"], self.problem["currency"]
        self.remaining = self.problem.get("remaining")


def _again(kind: type[ServiceError], detail: str, *fields: Any) -> ServiceError:
    return kind(detail, kind=fields[0], status=fields[1], problem=fields[2])


@dataclass(frozen=True, eq=False)
class Answers:
    """Private answers to n rows, and how far noise may have moved them.

    The intervals, and what is decided, are right with a probability of 95 % or more, over draws of the noise. A
    pay-once model's noise is drawn once: its answers may err together. Where a share d of answers is decided, up to
    0.05/d of these may name another class than the model without noise. Where no interval can be given (`no_interval`
    says why) nothing is known of what noise decided.
    """

    probabilities: NDArray[np.float64]
    """(n, C), in the order of `model()["classes"]`."""
    lower: NDArray[np.float64]
    """(n, C): the least of the probabilities without noise; 0 where there is no interval."""
    upper: NDArray[np.float64]
    """(n, C): the largest; 1 where there is no interval."""
    undecided: NDArray[np.bool_] | None
    """(n,): whether the noise could have made the likeliest class so; None where that is not known."""
    law: str | None
    """The law of the noise, as gaussian or laplace; None where it is not known."""
    on: Literal["logits", "log-odds", "selection"] | None
    """The quantity with noise: each logit, the log-odds of the drawn class, or the class's choice."""
    scale: NDArray[np.float64]
    """(n,): of the noise; nan where its law is not known."""
    no_interval: str | None
    """Why there is no interval, in words; None where there is one."""


_Result = TypeVar("_Result")
Sent = httpx.Response | httpx.TransportError | None
Steps = Generator[dict[str, Any] | float, Sent, _Result]
"""Yields requests, as httpx takes them, and seconds to wait; is sent what came of each; returns a result."""


class Questions:
    """The requests of clients and the reading of answers, without a transport."""

    _transport: type[httpx.Client | httpx.AsyncClient]

    def __init__(
        self,
        url: str,
        key: str = "",
        *,
        timeout: float = 30.0,
        attempts: int = 4,
        wait: float | None = None,
        trusting: ssl.SSLContext | None = None,
        sorted_classes: bool = False,
        model: str | None = None,
        clip: bool | None = None,
    ) -> None:
        """Keep whom to ask, and open no connection yet.

        Parameters
        ----------
        url : str
            The service's URL, http:// or https://.
        key : str, default ""
            The API key. Needed.
        timeout : float, in seconds, default 30.0
            The longest that one try may take.
        attempts : int, default 4
            The number of tries before giving up.
        wait : float, in seconds, optional
            The time after which the service refuses what it has not charged yet.
        trusting : ssl.SSLContext, optional
            The authorities that are trusted for HTTPS, as `ssl.create_default_context(cafile=...)` reads them from a
            file; by default the environment's SSL_CERT_FILE, or else those that browsers trust.
        sorted_classes : bool, default False
            Give `predict_proba` its columns sorted by the classes' names, as scikit-learn's metrics take them to be,
            and not in the model's own order.
        model : str, optional
            The name of the model that is asked; by default the service's default one.
        clip : bool, optional
            Whether to clip finite values beyond the declared bounds to them, instead of refusing them; by default
            as in the model's training, `model().get("clips", False)`.

        Raises ValueError for what cannot be a URL or a key, without repeating the key.
        """
        key = key.strip()
        if not _VISIBLE.fullmatch(key):
            raise ValueError(
                f"{type(self).__name__}(URL, KEY) needs an API key, which is visible ASCII characters without spaces"
            )
        if httpx.URL(url).scheme not in ("http", "https") or not httpx.URL(url).host:
            raise ValueError(f"the service's URL must begin with http:// or https://, not be {url!r}")
        self._url, self._attempts, self._wait, self._sorted_classes = url, attempts, wait, sorted_classes
        self._clip = clip
        self._name, self._of_model = model, "" if model is None else f"/models/{escaped(model, safe='')}"
        self._known: dict[str, Any] | None = None
        self._http: Any = self._transport(
            base_url=url,
            timeout=timeout,
            headers={"Authorization": f"Bearer {key}", "User-Agent": "dpserve-client"},
            verify=True if trusting is None else trusting,
        )

    def __repr__(self) -> str:
        """Return whom it asks, without the key."""
        model = "" if self._name is None else f", model={self._name!r}"
        return f"{type(self).__name__}({self._url!r}{model})"

    def _ask(self, method: str, url: str, **more: Any) -> Steps[httpx.Response]:
        """Ask until there is an answer, or no further try would help. Raises ServiceError."""
        for tried in range(1, self._attempts + 1):
            sent = yield {"method": method, "url": url, **more}
            if isinstance(sent, httpx.Response):
                if sent.is_success:
                    return sent
                error, cause, pause = _error(sent), None, _seconds_before_another_try(sent)
            else:
                error, cause, pause = ServiceError(f"{self._url} does not answer: {sent}"), sent, 0.0
            if pause is None or tried == self._attempts or error.kind == _PROBLEM + "deadline-passed":
                raise error from cause
            yield pause + random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (tried - 1)))  # noqa: S311
        raise ValueError("attempts must be 1 or more")

    def _ask_model(self) -> Steps[dict[str, Any]]:
        if self._known is None:
            if self._name is None:
                listed = (yield from self._ask("GET", "/models")).json()
                self._name = listed.get("default") or listed["models"][0]
            self._known = (yield from self._ask("GET", f"/models/{escaped(self._name, safe='')}")).json()
        return self._known

    def _ask_probabilities(self, X: ArrayLike) -> Steps[NDArray[np.float64]]:
        model = yield from self._ask_model()
        _check_classes(model)
        answers = yield from self._ask_values(X)
        return answers[:, np.argsort(model["classes"])] if self._sorted_classes else answers

    def _ask_outputs(self, X: ArrayLike) -> Steps[dict[str, NDArray[Any]]]:
        model, start, numbers = (yield from self._ask_model()), 0, {}
        answers = yield from self._ask_values(X)
        for output in model["outputs"]:
            labels = output.get("labels")
            part = answers[:, start] if labels is None else answers[:, start : start + len(labels)]
            numbers[output["name"]] = part.astype(np.int64) if output["type"] == "count" else part
            start += 1 if labels is None else len(labels)
        return numbers

    def _ask_values(self, X: ArrayLike) -> Steps[NDArray[np.float64]]:
        model = yield from self._ask_model()
        rows, largest = rows_to_send(model, X, clip=self._clip), int(model["largest_batch"])
        batches = []
        for start in range(0, len(rows), largest):
            answered = yield from self._ask_array(rows[start : start + largest])
            batches.append(np.load(io.BytesIO(answered.content), allow_pickle=False))
        answers: NDArray[np.float64] = np.concatenate(batches)
        return answers

    def _ask_classes(self, X: ArrayLike) -> Steps[NDArray[np.str_]]:
        answers = yield from self._ask_probabilities(X)
        assert self._known is not None
        names = np.asarray(self._known["classes"])
        labels: NDArray[np.str_] = (np.sort(names) if self._sorted_classes else names)[np.argmax(answers, axis=1)]
        return labels

    def _ask_answers(self, X: ArrayLike) -> Steps[Answers]:
        model = yield from self._ask_model()
        _check_classes(model)
        rows, largest = rows_to_send(model, X, clip=self._clip), int(model["largest_batch"])
        parts = []
        for start in range(0, len(rows), largest):
            answered = yield from self._ask_rows("/predict?noise=true", rows[start : start + largest])
            parts.append(answered.json())
        return _answers_of(parts)

    def _ask_sets(self, X: ArrayLike, coverage: float) -> Steps[NDArray[np.bool_]]:
        model = yield from self._ask_model()
        _check_classes(model)
        rows, largest = rows_to_send(model, X, clip=self._clip), int(model["largest_batch"])
        sets = []
        for start in range(0, len(rows), largest):
            answered = yield from self._ask_array(rows[start : start + largest], coverage=f"{coverage:.17g}")
            rule = json.loads(answered.headers[_SETS])
            sets.append(np.load(io.BytesIO(answered.content), allow_pickle=False) >= np.asarray(rule["least"]))
        inside: NDArray[np.bool_] = np.concatenate(sets)
        return inside[:, np.argsort(model["classes"])] if self._sorted_classes else inside

    def _ask_quote(self, X: ArrayLike) -> Steps[dict[str, Any]]:
        model = yield from self._ask_model()
        quoted = yield from self._ask_rows("/predict?dry_run=true", rows_to_send(model, X, clip=self._clip))
        quote: dict[str, Any] = quoted.json()["quote"]
        return quote

    def _ask_budget(self) -> Steps[dict[str, Any]]:
        budget: dict[str, Any] = (yield from self._ask("GET", f"{self._of_model}/budget")).json()
        return budget

    def _ask_receipts(self, after: int) -> Steps[dict[str, Any]]:
        listed = yield from self._ask("GET", f"{self._of_model}/budget/receipts?after={after}")
        page: dict[str, Any] = listed.json()
        return page

    def _ask_rows(self, path: str, rows: SentRows) -> Steps[httpx.Response]:
        asked = {"instances": rows if isinstance(rows, list) else rows.tolist()} | self._wishes()
        return self._ask("POST", self._of_model + path, json=asked)

    def _wishes(self) -> dict[str, Any]:
        """Return what is wished for beside rows."""
        return {} if self._clip is None else {"clip": self._clip}

    def _ask_array(self, rows: SentRows, **more: str) -> Steps[httpx.Response]:
        headers = {"Accept": _NPY}
        wishes = self._wishes()
        asked: dict[str, Any] = {"json": {"instances": rows}}
        if not isinstance(rows, list):
            # Arrays as they are: neither side turns numbers into decimal text and back.
            content = io.BytesIO()
            np.save(content, rows, allow_pickle=False)
            headers["Content-Type"], asked = _NPY, {"content": content.getvalue()}
        if self._wait is not None:
            headers["Prefer"] = f"wait={self._wait:g}"
        query = urlencode(
            more | {name: str(value).lower() if name == "clip" else value for name, value in wishes.items()}
        )
        return self._ask("POST", f"{self._of_model}/predict{'?' * bool(query)}{query}", headers=headers, **asked)


def _seconds_before_another_try(refusal: httpx.Response) -> float | None:
    """Return how long the service wants to be left alone before another try may help; None where none does."""
    after = refusal.headers.get("Retry-After", "")
    if refusal.status_code == httpx.codes.TOO_MANY_REQUESTS and after.isdigit() and int(after) <= _LONGEST_WAIT:
        return float(after)
    return 0.0 if refusal.status_code in (httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE) else None


def _check_classes(model: Mapping[str, Any]) -> None:
    """Raise ValueError for a model whose answers are no probabilities of classes."""
    if [output["name"] for output in model["outputs"]] != ["probabilities"]:
        named = ", ".join(output["name"] for output in model["outputs"])
        raise ValueError(f"the model {model['name']!r} answers with {named} and not with classes: ask for outputs(X)")


def _answers_of(replies: list[dict[str, Any]]) -> Answers:
    """Return the answers of several requests as one."""
    probabilities = np.concatenate([np.asarray(reply["predictions"], dtype=np.float64) for reply in replies])
    noise = [reply["noise"] for reply in replies]
    law, on, no_interval = (noise[0][name] for name in ("law", "on", "no_interval"))
    scale = np.full(len(probabilities), np.nan) if law is None else np.concatenate([entry["scale"] for entry in noise])
    undecided = np.concatenate([entry["undecided"] for entry in noise]) if "undecided" in noise[0] else None
    lower, upper = np.zeros_like(probabilities), np.ones_like(probabilities)
    if no_interval is None:
        lower, upper = (np.concatenate([entry[end] for entry in noise]) for end in ("lower", "upper"))
    return Answers(probabilities, lower, upper, undecided, law, on, scale, no_interval)


def _error(response: httpx.Response) -> ServiceError:
    try:
        problem = response.json()
        kind, detail = str(problem["type"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return ServiceError(f"the service answered {response.status_code}", status=response.status_code)
    make = BudgetExhausted if kind == _PROBLEM + "budget-exhausted" else ServiceError
    return make(detail, kind=kind, status=response.status_code, problem=problem)
