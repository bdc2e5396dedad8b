"""An endpoint as other people's attackers expect a model: scikit-learn's `predict_proba`, and a function of rows.

Answers are paid for as always, and asked for once: what was answered before comes from the journal.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin

from audit.endpoint import Endpoint, EndpointError
from audit.membership.asking import AnswerJournal, ask

Floats = NDArray[np.float64]


class EndpointClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted scikit-learn classifier that asks an endpoint. `classes_` are the model's class indices 0..C-1.

    `fit` trains nothing: the model is the service's. A clone (`sklearn.base.clone`, and so every fold of a
    cross-validation) has the same endpoint, account and answers: a row is paid for once, whichever of them asks. It
    goes into no other process, where its account could not follow.
    """

    def __init__(self, endpoint: Endpoint, journal: Path | None = None) -> None:
        """endpoint: one key of a service or a bundle. journal: where answers are kept, if anywhere."""
        self.endpoint = endpoint
        self.journal = journal
        self.classes_ = np.arange(len(endpoint.model()["classes"]))
        self.n_features_in_ = len(endpoint.model()["feature_names"])
        self._answers = AnswerJournal(journal, endpoint.model(), [endpoint.name()])

    def __sklearn_clone__(self) -> Self:
        """Return a classifier with the same endpoint and answers."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raise TypeError: a pickle or a copy would have the account, too."""
        raise TypeError("an endpoint has one account, which is not copied: use sklearn.base.clone, and n_jobs=1")

    def set_params(self, **params: Any) -> Self:
        """Return the classifier as it is. Raises ValueError for any parameter: there is none to tune."""
        if params:
            raise ValueError(f"an endpoint has no {' or '.join(params)} to set: make another EndpointClassifier")
        return self

    def fit(self, X: ArrayLike, y: Sequence[int] | None = None) -> "EndpointClassifier":
        """Return the classifier as it is."""
        del X, y
        return self

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Return private probabilities (n, C) of rows (n, d), in any number.

        Raises EndpointError where the budget does not pay for all of them; those that were paid for are kept.
        """
        rows = np.asarray(X, dtype=np.float64).reshape(len(np.asarray(X)), -1)
        answered = ask([self.endpoint], rows, self._answers)
        if answered.exhausted:
            missing = int(np.isnan(answered.answers[0, :, 0]).sum())
            raise EndpointError(f"the budget ran out with {missing} of {len(rows)} rows unanswered")
        found: Floats = answered.answers[0]
        return found

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the index of the likeliest class of each row: (n,)."""
        likeliest: NDArray[np.int64] = self.predict_proba(X).argmax(axis=1)
        return likeliest
