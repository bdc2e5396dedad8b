"""Canaries from the command line: trained, inspected, audited, and refused where they cannot be."""

import json

import pytest

from tests.dpserve.test_release_commands import CSV, PRICE, TRAIN


@pytest.fixture
def train(run):
    (run.folder / "r.csv").write_text(CSV)
    return lambda *arguments, **how: run(*TRAIN, *arguments, **how)


def test_a_model_with_canaries_says_what_was_promised_and_measured(train, run):
    release = ("--release", "class-sums", *PRICE, "--canaries", "1000")
    printed = " ".join(train(*release, "--out", "model").stdout.split())
    assert "promised at most 2; measured at least" in printed
    shown = json.loads(run("inspect", "model", "--json").stdout)["canaries"]
    assert shown["promised_epsilon"] == pytest.approx(2, rel=1e-4)
    assert 0 < shown["lower_bound_epsilon"] < 4  # above 4 with a probability below 1e-9
    assert shown["number"] == 1000
    audited = json.loads(run("audit", "release", "model", "--json").stdout)
    assert audited["canaries"] == shown
    assert audited["convicted"] is False
    train(*release, "--out", "other")
    assert json.loads(run("audit", "release", "model", "--other", "other", "--json").stdout)["convicted"] is False
    # The same noise in two models, here in one and itself.
    again = json.loads(run("audit", "release", "model", "--other", "model", "--json", status=3).stdout)
    assert again["convicted"] is True


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("--lam", "1"), 2, "audit service"),
        (("--release", "objective", *PRICE), 2, "no linear function"),
        (("--teachers", "8", "--steps", "20", "--hidden", "4"), 2, "audit service"),
        (("--release", "dpsgd", *PRICE, "--records-declared", "100", "--hidden", "4"), 2, "linear head"),
        (("--release", "class-sums", *PRICE, "--canaries", "3"), 2, "at least 64"),
    ],
)
def test_canaries_are_refused_with_the_reason(train, arguments, status, reason):
    canaries = () if "--canaries" in arguments else ("--canaries", "100")
    refused = train(*arguments, *canaries, "--out", "model", status=status).stderr
    assert reason in " ".join(refused.replace("│", " ").split())


def test_a_model_without_canaries_cannot_be_audited_by_them(train, run):
    train("--release", "class-sums", *PRICE, "--out", "model")
    assert "trained without canaries" in run.fails("audit", "release", "model")
    assert "canaries" not in json.loads(run("inspect", "model", "--json").stdout)
