"""The pictures of the audits of the sampler and of sensitivities."""

from audit.distinguishing.sensitivity import Measurement
from audit.sampler import ChiSquare
from dpserve.commands.audit_sampler import _p_values
from dpserve.commands.audit_sensitivity import _shares

PNG = b"\x89PNG"


def test_p_values_are_drawn_even_where_one_is_nothing():
    tests = [("gaussian", ChiSquare(what="law", statistic=1.0, cells=3, p=p)) for p in (0.5, 0.0, 1.0)]
    assert _p_values(tests, 1e-8).png.startswith(PNG)


def test_shares_of_claims_are_drawn():
    found = {"left out": (Measurement("weights", "a theorem", 0.5, 1.0), Measurement("logits", "another", 2.0, 1.0))}
    assert _shares(found).png.startswith(PNG)
