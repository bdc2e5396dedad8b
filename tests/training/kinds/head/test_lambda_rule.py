"""Lambda where none is given: a function of the price alone."""

import pytest

from dpserve.mechanisms.gaussian_vector import mu_for
from dpserve.training.features import rules
from dpserve.training.fit import Request, fit
from tests.training.conftest import make_records, terms


@pytest.mark.parametrize(
    ("kind", "options", "lam"),
    [
        (None, {}, 128.0),
        (None, {"lam": 3.0}, 3.0),
        ("weights", {"price": 10**10}, rules.strong_convexity(mu_for(10**10))),
        ("weights", {"price": 10**12}, rules.strong_convexity(mu_for(10**12))),
    ],
)
def test_it_is_that_of_the_rule_whatever_the_records(tmp_path, kind, options, lam):
    for n in (40, 41):
        own, more = terms(kind, options)
        request = Request(name="m", lineage=f"l{n}", kind=own, **more)
        fitted = fit(make_records(n, n=n), request, tmp_path / str(n), state=tmp_path / f"state-{n}")
        assert fitted.certificate.strong_convexity == lam
