"""`dpserve audit canaries`, and the two commands that follow it."""

import json
import shlex

import numpy as np

LABEL = ("--label", "ok")


def test_a_model_trained_with_canaries_is_attacked_by_the_command_that_was_printed(run):
    rng = np.random.default_rng(0)
    rows = zip(rng.uniform(0, 120, 400), rng.uniform(0, 1e6, 400), rng.integers(2, size=400), strict=True)
    lines = [f"{age:.3f},{income:.0f},{index},{('no', 'yes')[ok]}" for index, (age, income, ok) in enumerate(rows)]
    (run.folder / "people.csv").write_text("\n".join(["age,income,id,ok", *lines]) + "\n")
    shown = run("audit", "canaries", "people.csv", "--count", "80", "--seed", "0", *LABEL, "--out", "canaries").stdout
    folder = run.folder / "canaries"
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.csv" for name in ("training", "members", "non-members", "population")
    }
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
    train = ["weights" if word == "head" else word for word in run.train]
    run(*train, "--data", "canaries/training.csv", "--rho", "4", "--out", "MODEL")
    attack = next(line.partition("dpserve ")[2] for line in shown.splitlines() if line.startswith("Attack: "))
    asked = (*shlex.split(attack), "--ignore", "id", "--shadow-models", "2", "--json")
    found = json.loads(run(*asked).stdout)
    assert not found["convicted"]
    members, others = ((folder / f"{name}.csv").read_text().count("\n") - 1 for name in ("members", "non-members"))
    assert members + others == 80
    assert found["same_distribution"]["p_value"] > 1e-3


def test_wrong_input_leaves_no_folder(run):
    (run.folder / "people.csv").write_text(run.csv)
    for options in (("--count", "200", *LABEL), ("--count", "20"), ("--count", "20", *LABEL, "--classes", "no")):
        run.fails("audit", "canaries", "people.csv", *options, "--out", "canaries")
    assert not (run.folder / "canaries").exists()
    run("audit", "canaries", "people.csv", "--count", "20", "--seed", "0", *LABEL, "--out", "canaries")
    run.fails("audit", "canaries", "people.csv", "--count", "20", "--seed", "0", *LABEL, "--out", "canaries")
