"""The Python client of a running service, in scikit-learn's words.

from dpserve import Client

client = Client("http://127.0.0.1:8000", key)
probabilities = client.predict_proba(X)

`AsyncClient` is the same with `await`. What is asked, and made of the answers, is in `_Questions`: the two only send
and wait.
"""

import asyncio
import io
import json
import random
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, cast
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

    Without `intervals=True` no intervals come: `lower` and `upper` are None.
    """

    probabilities: NDArray[np.float64]
    """(n, C), in the order of `model()["classes"]`."""
    lower: NDArray[np.float64] | None
    """(n, C): the least of the probabilities without noise; None where intervals were not asked for."""
    upper: NDArray[np.float64] | None
    """(n, C): the largest; None where intervals were not asked for."""
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


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Sent = httpx.Response | httpx.TransportError | None
_Steps = Generator[dict[str, Any] | float, _Sent, _Result]
"""Yields requests, as httpx takes them, and seconds to wait; is sent what came of each; returns a result."""


class _Questions:
    """The requests of clients and the reading of answers, without a transport."""

    _transport: type[httpx.Client | httpx.AsyncClient]

    def __init__(
        self,
        url: str,
        key: str,
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
        key : str
            The API key.
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
            Whether to draw finite values beyond the declared bounds back to them, instead of refusing them; by default
            as in the model's training, `model().get("clips", False)`.

        Raises ValueError for what cannot be a URL or a key, without repeating the key.
        """
        key = key.strip()
        if not _VISIBLE.fullmatch(key):
            raise ValueError("the API key must be visible ASCII characters without spaces")
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

    def _ask(self, method: str, url: str, **more: Any) -> _Steps[httpx.Response]:
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

    def _ask_model(self) -> _Steps[dict[str, Any]]:
        if self._known is None:
            if self._name is None:
                listed = (yield from self._ask("GET", "/models")).json()
                self._name = listed.get("default") or listed["models"][0]
            self._known = (yield from self._ask("GET", f"/models/{escaped(self._name, safe='')}")).json()
        return self._known

    def _ask_probabilities(self, X: ArrayLike) -> _Steps[NDArray[np.float64]]:
        model = yield from self._ask_model()
        _check_classes(model)
        answers = yield from self._ask_values(X)
        return answers[:, np.argsort(model["classes"])] if self._sorted_classes else answers

    def _ask_outputs(self, X: ArrayLike) -> _Steps[dict[str, NDArray[Any]]]:
        model, start, numbers = (yield from self._ask_model()), 0, {}
        answers = yield from self._ask_values(X)
        for output in model["outputs"]:
            labels = output.get("labels")
            part = answers[:, start] if labels is None else answers[:, start : start + len(labels)]
            numbers[output["name"]] = part.astype(np.int64) if output["type"] == "count" else part
            start += 1 if labels is None else len(labels)
        return numbers

    def _ask_values(self, X: ArrayLike) -> _Steps[NDArray[np.float64]]:
        model = yield from self._ask_model()
        rows, largest = rows_to_send(model, X, clip=self._clip), int(model["largest_batch"])
        batches = []
        for start in range(0, len(rows), largest):
            answered = yield from self._ask_array(rows[start : start + largest])
            batches.append(np.load(io.BytesIO(answered.content), allow_pickle=False))
        answers: NDArray[np.float64] = np.concatenate(batches)
        return answers

    def _ask_classes(self, X: ArrayLike) -> _Steps[NDArray[np.str_]]:
        answers = yield from self._ask_probabilities(X)
        assert self._known is not None
        names = np.asarray(self._known["classes"])
        labels: NDArray[np.str_] = (np.sort(names) if self._sorted_classes else names)[np.argmax(answers, axis=1)]
        return labels

    def _ask_answers(self, X: ArrayLike, intervals: bool) -> _Steps[Answers]:
        model = yield from self._ask_model()
        _check_classes(model)
        rows, largest = rows_to_send(model, X, clip=self._clip), int(model["largest_batch"])
        parts = []
        for start in range(0, len(rows), largest):
            path = "/predict?intervals=true" if intervals else "/predict"
            answered = yield from self._ask_rows(path, rows[start : start + largest])
            parts.append(answered.json())
        return _answers_of(parts)

    def _ask_sets(self, X: ArrayLike, coverage: float) -> _Steps[NDArray[np.bool_]]:
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

    def _ask_quote(self, X: ArrayLike) -> _Steps[dict[str, Any]]:
        model = yield from self._ask_model()
        quoted = yield from self._ask_rows("/predict?dry_run=true", rows_to_send(model, X, clip=self._clip))
        quote: dict[str, Any] = quoted.json()["quote"]
        return quote

    def _ask_budget(self) -> _Steps[dict[str, Any]]:
        budget: dict[str, Any] = (yield from self._ask("GET", f"{self._of_model}/budget")).json()
        return budget

    def _ask_receipts(self, after: int) -> _Steps[dict[str, Any]]:
        listed = yield from self._ask("GET", f"{self._of_model}/budget/receipts?after={after}")
        page: dict[str, Any] = listed.json()
        return page

    def _ask_rows(self, path: str, rows: SentRows) -> _Steps[httpx.Response]:
        asked = {"instances": rows if isinstance(rows, list) else rows.tolist()} | self._wishes()
        return self._ask("POST", self._of_model + path, json=asked)

    def _wishes(self) -> dict[str, Any]:
        """Return what is wished for beside rows."""
        return {} if self._clip is None else {"clip": self._clip}

    def _ask_array(self, rows: SentRows, **more: str) -> _Steps[httpx.Response]:
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


class Client(_Questions):
    """A client of one service. It asks again where an answer was lost: a question is charged once.

    To scikit-learn it is a fitted classifier, whatever it is asked by: scorers, displays, cross-validation. There is
    nothing to train, so `fit` does nothing; there is one budget, so a clone is the client itself.
    """

    _transport = httpx.Client

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return private class probabilities, (n, C), for rows X, (n, d), in the order of `model()["classes"]`.

        Parameters
        ----------
        X : ndarray (n, d), data frame or list of mappings
            An array, whose columns are the features in the order of `model()["feature_names"]`, or a data frame of
            pandas or Polars, whose columns are matched by name, in any order. Where the model was trained by a schema,
            a data frame, or a list of rows by name, with the schema's columns; the client encodes them.

        Rows are sent in batches of at most what the service takes; each batch is charged whole or not at all.
        Raises ValueError, naming the first row that cannot be asked about, before anything is sent; BudgetExhausted
        when a batch costs more than is left: rows of earlier batches are paid for, and asking for them again
        returns the same answers at no cost. Raises ValueError for a model that answers otherwise: see `outputs`.
        """
        return self._all(self._ask_probabilities(X))

    def outputs(self, X: ArrayLike) -> dict[str, NDArray[Any]]:
        """Return the private answers of a model of any kind to rows X, (n, d): its outputs by name.

        Each is (n,), or (n, k) where it has k labels, as `model()["outputs"]` lists them; a classifier's one output is
        `probabilities`, in the order of `model()["classes"]`. Otherwise as `predict_proba`.

        Parameters
        ----------
        X : ndarray (n, d), data frame or list of mappings
            As for `predict_proba`.
        """
        return self._all(self._ask_outputs(X))

    def answers(self, X: ArrayLike, *, intervals: bool = False) -> Answers:
        """Return private class probabilities of rows X, (n, d), with how noisy they are. Otherwise as `predict_proba`.

        Parameters
        ----------
        X : ndarray (n, d), data frame or list of mappings
            As for `predict_proba`.
        intervals : bool, default False
            Whether to ask for an interval for each probability, too. It costs nothing, and triples the numbers of an
            answer.

        The columns are in the order of `model()["classes"]`, whatever `sorted_classes` says.
        """
        return self._all(self._ask_answers(X, intervals))

    def predict_set(self, X: ArrayLike, *, coverage: float = 0.9) -> NDArray[np.bool_]:
        """Return the prediction set of each row, (n, C): which classes are in it, in the order of `predict_proba`.

        Parameters
        ----------
        X : ndarray (n, d), data frame or list of mappings
            As for `predict_proba`.
        coverage : float, default 0.9
            The least share of further records, like those of the training, whose class is in their sets: 0.5 to 0.999,
            rounded up to thousandths, and chosen without looking at the sets.

        Costs nothing beyond `predict_proba`. The promise is for many rows together, and for no single one. A set may be
        empty: then no class reaches the probability that so many records had for their own class. Raises ServiceError
        for a model without prediction sets.
        """
        return self._all(self._ask_sets(X, coverage))

    def predict(self, X: ArrayLike) -> NDArray[np.str_]:
        """Return the name of the likeliest class of each private answer, (n,).

        Parameters
        ----------
        X : ndarray (n, d), data frame or list of mappings
            As for `predict_proba`.
        """
        return self._all(self._ask_classes(X))

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Return the accuracy of `predict` on rows whose classes are known.

        Parameters
        ----------
        X : ndarray (n, d), data frame or list of mappings
            As for `predict_proba`.
        y : array of str (n,)
            The names of the rows' classes.
        """
        return float(np.mean(self.predict(X) == np.asarray(y)))

    @property
    def classes_(self) -> NDArray[np.str_]:
        """The class names, (C,), in the order of the columns of `predict_proba`, which is their sorted one.

        Raises ValueError where the model's own order is another and was not given up for it: scikit-learn's metrics
        take the columns to be sorted, and would be wrong without a word.
        """
        in_order: NDArray[np.str_] = np.sort(self._names)
        if not self._sorted_classes and list(in_order) != list(self._names):
            raise ValueError(
                f"the model's classes are {', '.join(self._names)}, and scikit-learn's metrics take the columns to be "
                "sorted by name: make the Client with sorted_classes=True"
            )
        return in_order

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Return the client as it is: the model was trained by the service's owner.

        Parameters
        ----------
        X : object
            Ignored.
        y : object, optional
            Ignored.
        """
        del X, y
        return self

    def __sklearn_is_fitted__(self) -> bool:
        """Say to scikit-learn that it can be asked."""
        return True

    def __sklearn_clone__(self) -> Self:
        """Be one's own clone: another would ask on the same budget."""
        return self

    def __sklearn_tags__(self) -> Any:
        """Say to scikit-learn, which alone asks, what this is."""
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            requires_fit=False,
        )

    @property
    def _names(self) -> NDArray[np.str_]:
        return np.asarray(self.model()["classes"])

    def budget(self) -> dict[str, Any]:
        """Return what is spent and what is left, as `GET /budget` does."""
        return self._all(self._ask_budget())

    def quote(self, X: ArrayLike) -> dict[str, Any]:
        """Return what asking about rows X, (n, d), in one request would cost now, as `POST /predict?dry_run=true`.

        Spends nothing: `new_rows` cost `cost` together, `free` says which rows cost nothing, and `admitted`
        whether the request would be answered. For a model that is paid for once, `cost` is the model's price,
        and 0 once this client has paid.

        Parameters
        ----------
        X : ndarray (n, d), data frame or list of mappings
            As for `predict_proba`.
        """
        return self._all(self._ask_quote(X))

    def receipts(self) -> Iterator[dict[str, Any]]:
        """Yield the receipts of what was charged to this client, oldest first."""
        after: int | None = 0
        while after is not None:
            page = self._all(self._ask_receipts(after))
            yield from page["receipts"]
            after = page["next_after"]

    def model(self) -> dict[str, Any]:
        """Return the public part of the model's certificate, asked for once."""
        return self._all(self._ask_model())

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        """Return the client, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()

    def _all(self, steps: _Steps[_Result]) -> _Result:
        """Take every step in turn, and return the result."""
        sent: _Sent = None
        while True:
            try:
                step = steps.send(sent)
            except StopIteration as done:
                result: _Result = done.value
                return result
            try:
                sent = time.sleep(step) if isinstance(step, float) else self._http.request(**step)  # type: ignore[func-returns-value]
            except httpx.TransportError as error:
                sent = error


def _awaited(
    method: Callable[Concatenate[Client, _Parameters], _Result],
) -> Callable[Concatenate["AsyncClient", _Parameters], Coroutine[Any, Any, _Result]]:
    """Return a method as it is of `AsyncClient`, whose `_all` returns what is awaited."""
    return cast(Any, method)  # type: ignore[no-any-return]


class AsyncClient(_Questions):
    """A client of one service for programs with an event loop: made as `Client`, whose methods these are, with `await`.

    `predict_proba`, `outputs`, `answers`, `predict`, `predict_set`, `quote`, `budget` and `model` are awaited;
    `receipts` is for `async for`.
    """

    _transport = httpx.AsyncClient

    predict_proba = _awaited(Client.predict_proba)
    outputs = _awaited(Client.outputs)
    answers = _awaited(Client.answers)
    predict = _awaited(Client.predict)
    predict_set = _awaited(Client.predict_set)
    quote = _awaited(Client.quote)
    budget = _awaited(Client.budget)
    model = _awaited(Client.model)

    async def receipts(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the receipts of what was charged to this client, oldest first."""
        after: int | None = 0
        while after is not None:
            page = await self._all(self._ask_receipts(after))
            for receipt in page["receipts"]:
                yield receipt
            after = page["next_after"]

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        """Return the client, to be closed at the end of the block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self.aclose()

    async def _all(self, steps: _Steps[_Result]) -> _Result:
        sent: _Sent = None
        while True:
            try:
                step = steps.send(sent)
            except StopIteration as done:
                result: _Result = done.value
                return result
            try:
                sent = await (asyncio.sleep(step) if isinstance(step, float) else self._http.request(**step))
            except httpx.TransportError as error:
                sent = error


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
    probabilities = np.concatenate([np.asarray(each["predictions"], dtype=np.float64) for each in replies])
    noise = [each["noise"] for each in replies]
    law, on, no_interval = (noise[0][name] for name in ("law", "on", "no_interval"))
    scale = np.full(len(probabilities), np.nan) if law is None else np.concatenate([each["scale"] for each in noise])
    undecided = np.concatenate([each["undecided"] for each in noise]) if "undecided" in noise[0] else None
    lower = upper = None
    if "lower" in noise[0]:
        lower, upper = np.zeros_like(probabilities), np.ones_like(probabilities)
        if no_interval is None:
            lower, upper = (np.concatenate([each[end] for each in noise]) for end in ("lower", "upper"))
    return Answers(probabilities, lower, upper, undecided, law, on, scale, no_interval)


def _error(response: httpx.Response) -> ServiceError:
    try:
        problem = response.json()
        kind, detail = str(problem["type"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return ServiceError(f"the service answered {response.status_code}", status=response.status_code)
    make = BudgetExhausted if kind == _PROBLEM + "budget-exhausted" else ServiceError
    return make(detail, kind=kind, status=response.status_code, problem=problem)
