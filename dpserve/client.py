"""The Python client of a running service, in scikit-learn's words.

from dpserve import Client

client = Client("http://127.0.0.1:8000", key)
probabilities = client.predict_proba(X)

`AsyncClient` is the same with `await`. What is asked, and made of the answers, is in `dpserve.asking`: the two only
send and wait.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import httpx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpserve.asking import Answers, BudgetExhausted, Questions, Sent, ServiceError, Steps

__all__ = ["Answers", "AsyncClient", "BudgetExhausted", "Client", "ServiceError"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Client(Questions):
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

    def answers(self, X: ArrayLike) -> Answers:
        """Return private class probabilities of rows X, (n, d), with how noisy they are. Otherwise as `predict_proba`.

        Parameters
        ----------
        X : ndarray (n, d), data frame or list of mappings
            As for `predict_proba`.

        The columns are in the order of `model()["classes"]`, whatever `sorted_classes` says.
        """
        return self._all(self._ask_answers(X))

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

        Spends nothing: `new_rows` cost `cost` together, and add `shown_cost` to what `budget` says was spent, in the
        currency `shown_in`. `free` says which rows cost nothing, and `admitted` whether the request would be
        answered. For a model that is paid for once, `cost` is the model's price,
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

    def _all(self, steps: Steps[_Result]) -> _Result:
        """Take every step in turn, and return the result."""
        sent: Sent = None
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


class AsyncClient(Questions):
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

    async def _all(self, steps: Steps[_Result]) -> _Result:
        sent: Sent = None
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
