"""The endpoint as scikit-learn sees it."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss

from audit.endpoint import EndpointError
from audit.membership.adapters import EndpointClassifier


def test_scikit_learn_scores_it_like_any_classifier_and_pays_once(bundle, candidates, tmp_path):
    (endpoint,) = bundle()
    classifier = EndpointClassifier(endpoint, tmp_path / "journal").fit(None)
    X, y = candidates.others.X, candidates.others.y
    probabilities = classifier.predict_proba(X)
    assert probabilities.shape == (60, 3)
    assert np.isfinite(log_loss(y, probabilities.clip(1e-9), labels=classifier.classes_))
    assert classifier.score(X, y) == accuracy_score(y, classifier.predict(X))
    assert endpoint.paid == 60
    again = EndpointClassifier(endpoint, tmp_path / "journal")
    np.testing.assert_array_equal(again.predict_proba(X.tolist()), probabilities)
    assert endpoint.paid == 60


def test_a_budget_that_runs_out_is_said_and_what_was_paid_for_is_kept(bundle, candidates):
    (endpoint,) = bundle(rho=0.1001)
    classifier = EndpointClassifier(endpoint)
    with pytest.raises(EndpointError, match="40 of 60 rows unanswered"):
        classifier.predict_proba(candidates.others.X)
    assert classifier.predict_proba(candidates.others.X[:20]).shape == (20, 3)
