"""`dpserve attack` as a user runs it."""

import json

import numpy as np
import pytest

ROWS = 60


@pytest.fixture
def files(run):
    """Members are the first rows of the fixture's CSV, which all were trained on; others are drawn alike."""
    header, *lines = run.csv.splitlines()
    generator = np.random.default_rng(0)
    others = [f"{20 + i % 60},{1000 * (i % 60) + i % 7 + 10},{i},{'yes' if i % 60 > 30 else 'no'}" for i in range(ROWS)]
    members = [lines[i] for i in generator.permutation(len(lines))[:ROWS]]
    for name, rows in (("in.csv", members), ("out.csv", others)):
        (run.folder / name).write_text("\n".join([header, *rows]) + "\n")
    return ["--members", "in.csv", "--non-members", "out.csv", "--label", "ok", "--ignore", "id"]


QUICK = ["--shadow-models", 2, "--shadow-records", 20]


def test_a_bundle_is_attacked_and_reported_in_every_form(run, bundle, files):
    done = run("attack", bundle, *files, *QUICK, "--rho", 0.2, "--html", "r.html", "--png", "r.png", "--json")
    read = json.loads(done.stdout)
    assert read["convicted"] is False
    assert read["decided"] == {"members": ROWS, "non_members": ROWS}
    assert "at 95% confidence" in done.stderr
    assert (run.folder / "r.png").read_bytes().startswith(b"\x89PNG")
    assert "<img" in (run.folder / "r.html").read_text()


def test_a_service_is_attacked_through_its_keys_until_they_are_spent(run, service, files):
    (run.folder / "key").write_text(run("clients", "add", "eve", "--rho", 0.0405, "--delta", 1e-6).stdout)
    done = run("attack", service, *files, *QUICK, "--key-file", "key", "--journal", "j", "--json")
    read = json.loads(done.stdout)
    assert read["plan"]["rows_affordable"] == 40
    assert read["decided"] == {"members": 20, "non_members": 20}
    assert read["claim"]["of_everything_spent"]["rho"] == pytest.approx(0.04)
    assert len((run.folder / "j").read_text().splitlines()) == 41


def test_what_is_missing_is_said_in_one_line(run, bundle, files):
    assert "--key-file" in run.fails("attack", "http://127.0.0.1:9", *files)
    assert "--members" in run.fails("attack", bundle)
    assert "stands alone" in run.fails("attack", bundle, "--data", "digits", *files)
    (run.folder / "key").write_text("abc\n")
    assert "does not answer" in run.fails("attack", "http://127.0.0.1:9", *files, "--key-file", "key")
