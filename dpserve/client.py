"""The Python client of a running service, in scikit-learn's words.

from dpserve import Client

client = Client("http://127.0.0.1:8000", key)
probabilities = client.predict_proba(X)
"""

import io
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self
from urllib.parse import urlencode

import httpx
import numpy as np
from numpy.typing import ArrayLike, NDArray
from tenacity import (
    RetryCallState,
    RetryError,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

_NPY = "application/x-npy"
_PROBLEM = "urn:dpserve:problem:"
_VISIBLE = re.compile(r"[!-~]{1,8192}")


class ServiceError(Exception):
    """The service refused or failed. `kind` is the problem's type, `status` the HTTP status, 0 if none came."""

    def __init__(
        self, detail: str, *, kind: str = "", status: int = 0, problem: Mapping[str, Any] | None = None
    ) -> None:
        """problem: the whole problem document."""
        super().__init__(detail)
        self.kind = kind
        self.status = status
        self.problem = dict(problem or {})

    def __reduce__(self) -> tuple[object, ...]:
        """Be picklable, so that a worker process can raise it in its parent."""
        return _again, (type(self), str(self), self.kind, self.status, self.problem)


class BudgetExhausted(ServiceError):
    """The request costs more than is left; nothing was charged. `cost` and `remaining` are rho.

    `scope` says whose budget it is: the client's own, its group's, or the lineage's, which all clients share. What is
    left of those two is not said, and `remaining` is None. `refilled`: the day (UTC) on which a budget by period has
    more, or None.
    """

    scope: Literal["client", "group", "lineage"]
    cost: float
    remaining: float | None
    refilled: str | None

    def __init__(self, detail: str, **known: Any) -> None:
        """Take the numbers from the problem document."""
        super().__init__(detail, **known)
        self.scope = self.problem["scope"]
        self.cost = self.problem["cost"]
        self.remaining = self.problem.get("remaining")
        self.refilled = self.problem.get("refilled")


def _again(kind: type[ServiceError], detail: str, *known: Any) -> ServiceError:
    return kind(detail, kind=known[0], status=known[1], problem=known[2])


class _Unavailable(Exception):
    """Worth asking again: a question that was charged is not charged again."""

    def __init__(self, error: ServiceError, after: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.after = after
        """Seconds that the service asked to wait."""


@dataclass(frozen=True, eq=False)
class Answers:
    """Private answers to n rows, and how far noise may have moved them.

    The intervals, and what is decided, are right for 95 of 100 answers or more. Where the law of the noise is not known
    (`law` is None) each interval is all there is, and every answer undecided; likewise where a class was drawn.
    """

    probabilities: NDArray[np.float64]
    """(n, C), in the order of `model()["classes"]`."""
    lower: NDArray[np.float64]
    """(n, C): the least probability that the model may have given without noise."""
    upper: NDArray[np.float64]
    """(n, C): the largest."""
    undecided: NDArray[np.bool_]
    """(n,): whether the noise could have made the likeliest class so."""
    law: Literal["gaussian", "laplace", "exponential"] | None
    on: Literal["logits", "log-odds", "selection"] | None
    """What has noise: each logit, the log-odds of the class that was drawn, or which class is drawn."""
    scale: NDArray[np.float64]
    """(n,): of the noise; nan where its law is not known."""


class Client:
    """A client of one service. It asks again where an answer was lost: a question is charged once.

    To scikit-learn it is a fitted classifier, whatever it is asked by: scorers, displays, cross-validation. There is
    nothing to train, so `fit` does nothing; there is one budget, so a clone is the client itself.
    """

    _estimator_type = "classifier"  # what scikit-learn before 1.6 asks for, in place of __sklearn_tags__

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
    ) -> None:
        """url: of the service. key: the API key. timeout: seconds for one try. attempts: tries before giving up.

        wait: seconds after which the service is to charge nothing that it has not charged yet, but to refuse.
        trusting: whose certificates are good for HTTPS, as `ssl.create_default_context(cafile=...)` reads them from a
        file; by default the environment's SSL_CERT_FILE, or else those of the authorities that browsers trust.
        sorted_classes: give `predict_proba` its columns sorted by the classes' names, as scikit-learn's metrics take
        them to be, and not in the model's own order.

        Raises ValueError for what cannot be a URL or a key, without repeating the key.
        """
        key = key.strip()
        if not _VISIBLE.fullmatch(key):
            raise ValueError("the API key must be visible ASCII characters without spaces")
        if httpx.URL(url).scheme not in ("http", "https") or not httpx.URL(url).host:
            raise ValueError(f"the service's URL must begin with http:// or https://, not be {url!r}")
        self._http = httpx.Client(
            base_url=url,
            timeout=timeout,
            headers={"Authorization": f"Bearer {key}", "User-Agent": "dpserve-client"},
            verify=True if trusting is None else trusting,
        )
        self._attempts = attempts
        self._wait = wait
        self._sorted_classes = sorted_classes
        self._model: dict[str, Any] | None = None

    def predict_proba(self, X: ArrayLike, *, tier: str | None = None) -> NDArray[np.float64]:
        """Return private class probabilities, (n, C), for rows X, (n, d), in the order of `model()["classes"]`.

        X is an array, whose columns are the features in the order of `model()["feature_names"]`, or a data frame of
        pandas or Polars, whose columns are matched by name, in any order. Where the model was trained by a schema, X is
        a data frame, or a list of rows by name, with the schema's columns; the client encodes them.

        Rows are sent in batches of at most what the service takes; each batch is charged whole or not at all.
        Raises ValueError, naming the first row that cannot be asked about, before anything is sent; BudgetExhausted
        when a batch costs more than is left: rows of earlier batches are paid for, and asking for them again
        returns the same answers at no cost.

        tier: the precision to be answered at, where the model is paid for once and has several; by default the finest
        that this client holds, or the coarsest. Moving to a finer one costs the difference: see `quote`.
        """
        rows = self._checked_rows(X)
        largest = int(self.model()["largest_batch"])
        batches = [self._predict(rows[start : start + largest], tier) for start in range(0, len(rows), largest)]
        answers = np.concatenate(batches)
        return answers[:, np.argsort(self._names)] if self._sorted_classes else answers

    def answers(self, X: ArrayLike, *, tier: str | None = None) -> Answers:
        """Return private class probabilities of rows X, (n, d), with how noisy they are. Otherwise as `predict_proba`.

        The columns are in the order of `model()["classes"]`, whatever `sorted_classes` says.
        """
        rows = self._checked_rows(X)
        largest = int(self.model()["largest_batch"])
        asked = [_body(rows[start : start + largest], tier) for start in range(0, len(rows), largest)]
        said = [self._ask("POST", "/predict", body) for body in asked]
        probabilities = np.concatenate([np.asarray(each["predictions"], dtype=np.float64) for each in said])
        noise = [each["noise"] for each in said]
        if any(each is None for each in noise):
            law = on = None
            scale, undecided = np.full(len(rows), np.nan), np.ones(len(rows), dtype=np.bool_)
        else:
            law, on = noise[0]["law"], noise[0]["on"]
            scale = np.concatenate([each["scale"] for each in noise])
            undecided = np.concatenate([each["undecided"] for each in noise])
        lower, upper = np.zeros_like(probabilities), np.ones_like(probabilities)
        if law is not None and noise[0]["lower"] is not None:
            lower, upper = (np.concatenate([each[end] for each in noise]) for end in ("lower", "upper"))
        return Answers(probabilities, lower, upper, undecided, law, on, scale)

    def predict(self, X: ArrayLike, *, tier: str | None = None) -> NDArray[np.str_]:
        """Return the name of the likeliest class of each private answer, (n,). tier: as for `predict_proba`."""
        classes = np.sort(self._names) if self._sorted_classes else self._names
        names: NDArray[np.str_] = classes[np.argmax(self.predict_proba(X, tier=tier), axis=1)]
        return names

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Return the accuracy of `predict` on rows X, (n, d), whose class names y, (n,), are known."""
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
        """Return the client as it is: the model was trained by the service's owner."""
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
        return self._ask("GET", "/budget")

    def quote(self, X: ArrayLike, *, tier: str | None = None) -> dict[str, Any]:
        """Return what asking about rows X, (n, d), in one request would cost now, as `POST /predict?dry_run=true`.

        Spends nothing: `new_rows` cost `cost_rho` together, `free` says which rows cost nothing, and `admitted`
        whether the request would be answered. For a model that is paid for once, `cost_rho` is the difference between
        `tier` and what this client holds.
        """
        rows = self._checked_rows(X)
        quote: dict[str, Any] = self._ask("POST", "/predict?dry_run=true", _body(rows, tier))["quote"]
        return quote

    def receipts(self) -> Iterator[dict[str, Any]]:
        """Yield the receipts of everything that was charged to this client, oldest first."""
        after: int | None = 0
        while after is not None:
            page = self._ask("GET", f"/budget/receipts?after={after}")
            yield from page["receipts"]
            after = page["next_after"]

    def model(self) -> dict[str, Any]:
        """Return the public part of the model's certificate, asked for once."""
        if self._model is None:
            name = self._ask("GET", "/models")["models"][0]
            self._model = self._ask("GET", f"/models/{name}")
        return self._model

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        """Return the client, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()

    def _checked_rows(self, X: ArrayLike) -> NDArray[np.float64]:
        names = self.model()["feature_names"]
        if (named := _rows_by_name(X)) is not None and (described := self.model()["feature_map"].get("columns")):
            # Few models have columns, and only their clients should wait for what reads them.
            from training.columns import columns_from, encode_rows
            from training.errors import DataError

            try:
                return encode_rows(columns_from(described), named)
            except DataError as error:
                raise ValueError(str(error)) from None
        columns = _columns_in_order(X, names)
        rows = np.asarray(X, dtype=np.float64)
        if rows.ndim != 2 or len(rows) == 0:
            raise ValueError(f"X must have two dimensions, rows and features, and at least one row, not {rows.shape}")
        if columns is not None:
            rows = np.ascontiguousarray(rows[:, columns])
        if rows.shape[1] != len(names):
            raise ValueError(f"row 0 has {rows.shape[1]} values; the model takes {len(names)}")
        bounds = self.model()["feature_map"]
        inside = (rows >= np.asarray(bounds["lower"])) & (rows <= np.asarray(bounds["upper"]))
        if not inside.all():
            row, column = (int(place) for place in np.argwhere(~inside)[0])
            raise ValueError(
                f"row {row}, column {column} ({names[column]!r}) is {rows[row, column]:g}; it must be a number from "
                f"{bounds['lower'][column]:g} to {bounds['upper'][column]:g}"
            )
        return rows

    def _predict(self, rows: NDArray[np.float64], tier: str | None) -> NDArray[np.float64]:
        # Arrays as they are: neither side turns numbers into decimal text and back.
        body = io.BytesIO()
        np.save(body, rows, allow_pickle=False)
        headers = {"Content-Type": _NPY, "Accept": _NPY}
        if self._wait is not None:
            headers["Prefer"] = f"wait={self._wait:g}"
        query = "" if tier is None else "?" + urlencode({"tier": tier})
        answered = self._asked("POST", f"/predict{query}", {"content": body.getvalue()}, headers)
        predictions: NDArray[np.float64] = np.load(io.BytesIO(answered.content), allow_pickle=False)
        return predictions

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        answer: dict[str, Any] = self._asked(method, path, {} if body is None else {"json": body}, {}).json()
        return answer

    def _asked(self, method: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
        retrying = Retrying(
            stop=stop_after_attempt(self._attempts),
            wait=_pause,
            retry=retry_if_exception_type(_Unavailable),
        )
        try:
            return retrying(self._ask_once, method, path, body, headers)
        except RetryError as error:
            last = error.last_attempt.exception()
            raise (last.error if isinstance(last, _Unavailable) else error) from None

    def _ask_once(self, method: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
        try:
            response = self._http.request(method, path, headers=headers, **body)
        except httpx.TransportError as error:
            raise _Unavailable(ServiceError(f"{self._http.base_url} does not answer: {error}")) from error
        if response.is_success:
            return response
        failed = _error(response)
        after = response.headers.get("Retry-After", "")
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS and after.isdigit() and int(after) <= _LONGEST_PAUSE:
            raise _Unavailable(failed, float(after))
        if failed.kind != _PROBLEM + "deadline-passed" and response.status_code in (
            httpx.codes.BAD_GATEWAY,
            httpx.codes.SERVICE_UNAVAILABLE,
        ):
            raise _Unavailable(failed)
        raise failed


def _pause(state: RetryCallState) -> float:
    """Return how long to wait before the next try: as long as the service asked for, and by chance a little more."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked = error.after if isinstance(error, _Unavailable) else 0.0
    return asked + _BACKING_OFF(state)


_BACKING_OFF = wait_random_exponential(multiplier=0.1, max=5)
_LONGEST_PAUSE = 60
"""Seconds; whoever is to wait longer for the next request is told so."""


def _columns_in_order(X: ArrayLike, names: Sequence[str]) -> list[int] | None:
    """Return where each feature stands among a data frame's columns; None for what has no names of columns.

    Columns that are only numbered, as pandas numbers them, count as without names. Raises ValueError for columns that
    are missing, unknown, or there twice.
    """
    columns = list(getattr(X, "columns", ()))
    if all(isinstance(column, int | np.integer) for column in columns):
        return None
    missing = [name for name in names if name not in columns]
    unknown = [str(column) for column in columns if column not in names]
    twice = sorted({str(column) for column in columns if columns.count(column) > 1})
    wrong = [
        f"{what} {', '.join(map(repr, found))}"
        for what, found in (("lacks", missing), ("has the unknown", unknown), ("repeats", twice))
        if found
    ]
    if wrong:
        raise ValueError(
            f"the columns of X are not the model's features: it {' and '.join(wrong)}. The features are "
            f"{', '.join(names)}; X.to_numpy() sends columns in this order whatever their names"
        )
    return [columns.index(name) for name in names]


def _rows_by_name(X: object) -> list[dict[str, object]] | None:
    """Return the rows of a list of mappings, or of a data frame; None for what has no names of columns."""
    if isinstance(X, Sequence) and len(X) and all(isinstance(row, Mapping) for row in X):
        return [dict(row) for row in X]
    if not hasattr(X, "__arrow_c_stream__") or not hasattr(X, "columns"):
        return None
    import pyarrow as pa

    rows: list[dict[str, object]] = pa.RecordBatchReader.from_stream(X).read_all().to_pylist()
    return rows


def _body(rows: NDArray[np.float64], tier: str | None) -> dict[str, object]:
    return {"instances": rows.tolist()} | ({} if tier is None else {"tier": tier})


def _error(response: httpx.Response) -> ServiceError:
    try:
        problem = response.json()
        kind, detail = str(problem["type"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return ServiceError(f"the service answered {response.status_code}", status=response.status_code)
    make = BudgetExhausted if kind == _PROBLEM + "budget-exhausted" else ServiceError
    return make(detail, kind=kind, status=response.status_code, problem=problem)
