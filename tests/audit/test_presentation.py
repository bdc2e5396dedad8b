"""The pictures of the audits of the sampler and of sensitivities."""

from audit.distinguishing.neighbours import Measurement
from audit.presentation import of_sampler, of_sensitivity
from audit.sampler import ChiSquare, Timing, Timings

PNG = b"\x89PNG"


def test_p_values_are_drawn_even_where_one_is_nothing():
    tests = [("gaussian", ChiSquare(what="law", statistic=1.0, cells=3, p=p)) for p in (0.5, 0.0, 1.0)]
    times = {"gaussian": Timings(100, 1.0, (Timing("margin", 0.1, 0.5),), 1.0)}
    report = of_sampler({"a table": 0.0}, tests, 1e-8, 0, 0, times)
    assert report.convicted
    assert report.pictures[0].png.startswith(PNG)


def test_shares_of_claims_are_drawn():
    found = {"left out": (Measurement("weights", "a theorem", 0.5, 1.0), Measurement("logits", "another", 2.0, 1.0))}
    report = of_sensitivity("published", found)
    assert report.verdict == "Convicted: beyond what is claimed for logits."
    assert report.pictures[0].png.startswith(PNG)
