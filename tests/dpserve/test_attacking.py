"""`dpserve attack` as a user runs it."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys

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
    done = run("attack", bundle, *files, *QUICK, "--rho", 0.2, "--png", "r.png", "--json")
    read = json.loads(done.stdout)
    assert read["convicted"] is False
    assert read["decided"] == {"members": ROWS, "non_members": ROWS}
    assert "at 95% confidence" in done.stderr
    assert (run.folder / "r.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("mechanism", ["selected-neuron", "label"])
def test_a_bundle_is_attacked_at_each_mechanisms_default_price(run, bundle, files, mechanism):
    done = run("attack", bundle, *files, *QUICK, "--mechanism", mechanism, "--rho", 0.2, "--json")
    assert json.loads(done.stdout)["plan"]["rows_affordable"] == 160


def test_a_service_is_attacked_through_its_keys_until_they_are_spent(run, service, files):
    (run.folder / "key").write_text(run("clients", "add", "eve", "--rho", 0.0405, "--delta", 1e-6).stdout)
    done = run("attack", service, *files, *QUICK, "--key-file", "key", "--journal", "j", "--json")
    read = json.loads(done.stdout)
    assert read["plan"]["rows_affordable"] == 40
    assert read["decided"] == {"members": 20, "non_members": 20}
    assert read["claim"]["of_everything_spent"]["rho"] == pytest.approx(0.04)
    assert len((run.folder / "j").read_text().splitlines()) == 43  # what it is of, two counts, and 40 answers


def test_what_is_missing_is_said_in_one_line(run, bundle, files):
    assert "--key-file" in run.fails("attack", "http://127.0.0.1:9", *files)
    assert "--members" in run.fails("attack", bundle)
    assert "takes 'digits' alone" in run.fails("attack", bundle, "--data", "digits", *files)
    (run.folder / "key").write_text("abc\n")
    assert "does not answer" in run.fails("attack", "http://127.0.0.1:9", *files, "--key-file", "key")
    assert "neither a service's address, http://host:port, nor" in run.fails("attack", "127.0.0.1:9", *files)
    assert "has no effect" in run("attack", "http://127.0.0.1:9", *files, "--rho", 1, status=2).stderr
    assert "has no effect" in run("attack", bundle, *files, "--key-file", "key", status=2).stderr
    (run.folder / "bad.csv").write_text("age,height,id,ok\n30,170,1,yes\n")
    wrong = run.fails("attack", bundle, *files[:3], "bad.csv", *files[4:])
    assert wrong == "bad.csv lacks the column income; the model takes age, income"


def test_where_shadow_models_are_trained_is_chosen_before_a_row_is_paid_for(run, bundle, files):
    run.environment["CUDA_VISIBLE_DEVICES"] = ""
    for device, status, said in (
        (("abacus",), 1, "'auto', 'cpu' or 'cuda'"),
        (("cuda", "--ray", "local"), 2, "goes without --ray"),
        (("cuda",), 1, "no CUDA device"),
    ):
        done = run("attack", bundle, *files, *QUICK, "--journal", "j", "--shadow-device", *device, status=status)
        assert said in done.stderr
    assert not (run.folder / "j").exists()


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_said_in_one_line_before_a_row_is_paid_for(run, bundle, files):
    """Neither where nothing listens, nor where what listens is no cluster."""
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address in ("127.0.0.1:1", f"127.0.0.1:{silent.getsockname()[1]}"):
            done = run("attack", bundle, *files, *QUICK, "--journal", "j", "--ray", address, status=1)
            assert f"dpserve: no Ray cluster answers at {address}: start one" in done.stderr.splitlines()[-1]
    assert not (run.folder / "j").exists()


def test_a_picture_that_cannot_be_written_is_refused_before_a_row_is_paid_for(run, bundle, files):
    said = run.fails("attack", bundle, *files, *QUICK, "--journal", "j", "--png", "nowhere/report")
    assert "nowhere/report" in said
    assert not (run.folder / "j").exists()


INTERRUPTIBLE = """
import os, signal
from dpserve.audit.membership.asking import AnswerJournal
from dpserve.cli import main

def add(journal, *words, before=AnswerJournal.add):
    before(journal, *words)
    os.write({tell}, b".")

AnswerJournal.add = add
# A test run in the background hands down that Ctrl-C is ignored; a user's shell does not.
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""
"""The command line, which tells through a pipe of every answer once it is in the journal."""


@pytest.mark.slow
def test_an_attack_that_is_interrupted_says_how_to_go_on_and_ends_as_if_it_had_not_been(run, bundle, files):
    whole = run("attack", bundle, *files, *QUICK, "--seed", 5, "--json").stdout
    command = ["attack", bundle, *files, "--shadow-records", 20, "--seed", 5, "--journal", "j", "--shadow-models"]
    answered, tell = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE.format(tell=tell), *map(str, command), "1000"],
        cwd=run.folder,
        env=run.environment,
        stderr=subprocess.PIPE,
        pass_fds=[tell],
        text=True,
    )
    run.started.append(process)
    os.close(tell)
    os.read(answered, 1)  # or the end of the pipe, if the command ends before
    os.close(answered)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert '"answer"' in (run.folder / "j").read_text()
    assert process.returncode == 130
    assert said.splitlines()[-1] == "interrupted; what was answered is in j, and the same command goes on from there"
    assert run(*command, 2, "--json").stdout == whole
    refused = run("attack", bundle, *files, *QUICK, "--seed", 6, "--journal", "j", status=1)
    assert "key and seed; name another file" in refused.stderr.splitlines()[-1]


@pytest.mark.slow
def test_records_that_are_told_apart_without_the_model_are_inconclusive(run, bundle, files):
    header, *lines = (run.folder / "out.csv").read_text().splitlines()
    younger = [",".join([str(20 + index % 5), *line.split(",")[1:]]) for index, line in enumerate(lines)]
    (run.folder / "out.csv").write_text("\n".join([header, *younger]) + "\n")
    done = run("attack", bundle, *files, *QUICK, status=4)
    assert "Inconclusive: members and non-members cannot be compared" in " ".join(done.stdout.split())
    # The same where nobody reads what is printed, as in `| head`: the status and the report are what counts.
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dpserve", "attack", bundle, *files, *QUICK, "--png", "report.png"]
    unread = subprocess.run(
        [*map(str, command)], cwd=run.folder, env=run.environment, stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert unread.returncode == 4
    assert "Error" not in unread.stderr
    assert (run.folder / "report.png").exists()


def test_every_record_is_written_with_its_own_rate(run, bundle, files):
    said = run("attack", bundle, *files, *QUICK, "--rho", 0.2, "--records", "r.csv", "--group", "id", "--json").stdout
    with (run.folder / "r.csv").open() as text:
        rows = list(csv.DictReader(text))
    assert (run.folder / "r.csv").stat().st_mode & 0o777 == 0o600
    assert [(row["file"], int(row["row"])) for row in rows] == [
        (name, place) for name in ("members", "non-members") for place in range(1, ROWS + 1)
    ]
    ids = [line.split(",")[2] for name in ("in.csv", "out.csv") for line in (run.folder / name).read_text().split()[1:]]
    assert [row["group"] for row in rows] == ids
    first = json.loads(said)["records"]["most_exposed"][0]
    assert first["fpr"] == min(float(row["fpr"]) for row in rows)


def test_a_file_or_a_group_that_is_not_there_is_said_before_a_row_is_paid_for(run, bundle, files):
    asked = ("attack", bundle, *files, *QUICK, "--journal", "j")
    assert "nowhere/r.csv" in run.fails(*asked, "--records", "nowhere/r.csv")
    assert "has no column 'ward'" in run.fails(*asked, "--group", "ward")
    assert not (run.folder / "j").exists()
