"""The endpoint as scikit-learn sees it."""

import copy
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV, cross_val_predict

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


def test_clones_share_the_account_and_every_row_is_paid_for_once(bundle, candidates, tmp_path):
    (endpoint,) = bundle(rho=0.3001)
    classifier = EndpointClassifier(endpoint, tmp_path / "journal")
    X, y = candidates.others.X, candidates.others.y
    folds = cross_val_predict(classifier, X, y, cv=3, method="predict_proba")
    assert endpoint.paid == 60
    other = clone(classifier)
    assert other is not classifier
    assert other.get_params() == classifier.get_params() == {"endpoint": endpoint, "journal": tmp_path / "journal"}
    np.testing.assert_array_equal(other.predict_proba(X), folds)
    np.testing.assert_array_equal(classifier.predict_proba(X), folds)
    assert endpoint.paid == 60
    with pytest.raises(EndpointError, match="ran out"):
        clone(other).predict_proba(X + 0.001)
    assert len((tmp_path / "journal").read_text().splitlines()) == 61


def test_an_account_is_not_copied_into_another_object_or_process(serve, bundle, candidates):
    for endpoint in (serve().endpoint(), *bundle()):
        classifier = EndpointClassifier(endpoint)
        assert clone(classifier).endpoint is endpoint
        for copied in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=r"not copied: use sklearn\.base\.clone, and n_jobs=1"):
                copied(classifier)
        with pytest.raises(ValueError, match="no journal to set: make another"):
            GridSearchCV(classifier, {"journal": [None]}, cv=2, error_score="raise").fit(
                candidates.others.X, candidates.others.y
            )
