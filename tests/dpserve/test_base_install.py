"""The base install: it works without extras, and whatever needs one says so before it starts."""

import json
import subprocess
import sys

import pytest

WITHOUT = """
import sys
finder = next(each for each in sys.meta_path if getattr(each, "__name__", "") == "PathFinder")
real = finder.find_spec
extras = ("grpc", "matplotlib", "opacus", "ray", "torch")
finder.find_spec = lambda name, *more: None if name.partition(".")[0] in extras else real(name, *more)
from dpserve.cli import main
"""
WITHOUT_IN_TURN = f"""{WITHOUT}
for words in sys.argv[1:]:
    sys.argv = ["dpserve", *words.split()]
    try:
        main()
    except SystemExit as ended:
        print(ended.code)
"""


@pytest.fixture
def bare(run):
    """Run a command where no extra is installed."""

    def call(*arguments, status=0):
        done = subprocess.run(
            [sys.executable, "-c", f"{WITHOUT}main()", *map(str, arguments)],
            cwd=run.folder,
            env=run.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return call


def test_the_sampler_is_audited(bare):
    done = bare("audit", "sampler", "--draws", 20_000, "--releases", 100, "--scale", 256, "--json")
    assert json.loads(done.stdout)["promised_distance"] > 0


def test_a_model_is_attacked(run, bundle, bare):
    lines = run.csv.splitlines()
    for name, rows in (("members.csv", lines[1:101]), ("others.csv", lines[101:])):
        (run.folder / name).write_text("\n".join([lines[0], *rows]) + "\n")
    files = ["--members", "members.csv", "--non-members", "others.csv", "--label", "ok", "--ignore", "id"]
    done = bare("attack", bundle, *files, "--shadow-models", 2, "--shadow-records", 20)
    assert "LiRA, online" in done.stdout
    assert "LiRA, pooled" in done.stdout


NEEDED = {
    "audit sampler --draws 10000000000 --png found.png": "matplotlib",
    "train-published --data digits --out network": "torch",
    "serve nowhere --grpc-port 0": "grpc",
}
"""Commands, each with the extra that it needs."""


def test_what_a_command_needs_is_said_before_it_works(run):
    """All in one process, for none of them loads what another needs."""
    words = [sys.executable, "-c", WITHOUT_IN_TURN, *NEEDED]
    done = subprocess.run(
        words, cwd=run.folder, env=run.environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.splitlines() == ["1"] * len(NEEDED), done.stderr
    for said, missing in zip(done.stderr.splitlines(), NEEDED.values(), strict=True):
        assert f"needs {missing}: pip install 'dpserve[" in said
    assert not list(run.folder.glob("found.*"))
