"""The pictures of the audit of the sampler."""

from dpserve.audit.presentation import sampler_report
from dpserve.audit.sampler import ChiSquare, SamplerFinding, Timing, Timings


def test_p_values_are_drawn_even_where_one_is_nothing():
    tests = [("gaussian", ChiSquare(what="law", statistic=1.0, cells=3, p=p)) for p in (0.5, 0.0, 1.0)]
    times = {"gaussian": Timings(100, 1.0, (Timing("margin", 0.1, 0.5),), 1.0)}
    report = sampler_report(SamplerFinding({"a table": 0.0}, tests, (), 1e-8, 0, 0, times))
    assert report.convicted
    assert report.picture.png.startswith(b"\x89PNG")
