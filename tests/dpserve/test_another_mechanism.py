"""A mechanism that another package brings in one file is known everywhere, with no other line changed."""

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from dpserve import Client
from dpserve.audit.distinguishing.mechanism import judge, observe_noise
from dpserve.audit.noise import judge_near_copies
from dpserve.mechanisms.mechanism import Price
from dpserve.mechanisms.seeded import SeededRandomness
from research.noise_faults import Faulty

pytestmark = pytest.mark.usefixtures("another_package")
PACKAGE = Path(__file__).parent.parent / "another_package"
CSV_ROWS = 60

HALF_A_MECHANISM = """
from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.mechanisms.mechanism import Mechanism


class Broken(Mechanism):
    name, status = "half", "proven"
    cost = Cost((GaussianLoss(0.1),))
"""


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, PACKAGE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as a dataclass wants it
    spec.loader.exec_module(module)
    return module


GEOMETRIC = loaded("noisy_geometric").Geometric


def test_its_noise_is_two_sided_geometric():
    """Two means of 100,000 differences, with standard errors of 0.003 and 0.006 of themselves: ten and eight."""
    mechanism = GEOMETRIC(2.0)
    ones = np.ones(100_000)
    answers = mechanism.release(np.zeros((100_000, 2)), ones, SeededRandomness(0, ("geometric",)))
    differences = np.log(answers[:, 0] / answers[:, 1]) / mechanism.answer_noise(ones, 2).scale
    # E|X - X'| of two Laplace variables of scale 1 is 3/2, and their variance 4.
    assert np.abs(differences).mean() == pytest.approx(1.5, rel=0.03)
    assert differences.var() == pytest.approx(4, rel=0.05)


def test_it_is_priced():
    assert GEOMETRIC.at_price(Price.parse("epsilon:0.5"), 3) == GEOMETRIC(0.5)
    assert GEOMETRIC.at_price(Price.parse("rho:0.125"), 3) == GEOMETRIC(0.5)
    with pytest.raises(ValueError, match="write the price epsilon:E"):
        GEOMETRIC.at_price(Price.parse("epsilon:1@1e-6"), 3)


def audited(mechanism, sound, classes, trials):
    worlds = sound.worst_neighbours(classes)
    *scores, noise = observe_noise(mechanism, worlds, trials, SeededRandomness(0, ("audit", repr(mechanism))))
    return judge(sound, *scores, delta=0.0, noise=noise)


@pytest.mark.parametrize("classes", [2, 5])
def test_its_claim_is_audited_and_a_tenth_of_its_noise_convicted(classes):
    """A sound mechanism is convicted with a probability of 1e-9."""
    sound = GEOMETRIC(1.0)
    found = audited(sound, sound, classes, 4000)
    assert not found.convicted
    assert 0.4 < found.epsilon < 1
    assert found.noise.ratio == pytest.approx(1, rel=0.1)
    weak = audited(Faulty(sound, 0.1), sound, classes, 4000)
    assert weak.convicted
    assert weak.epsilon > 1
    assert weak.noise.p_value < 1e-9


def test_answers_to_near_copies_show_a_tenth_of_its_noise():
    sound, sensitivity = GEOMETRIC(0.1), np.full(200, 0.5)
    for share, convicted in ((1.0, False), (0.1, True)):
        answers = Faulty(sound, share).release(np.zeros((200, 10)), sensitivity, SeededRandomness(0, (repr(share),)))
        assert (judge_near_copies(sound, answers, sensitivity).p_value < 1e-9) is convicted


def test_it_is_served_with_its_law_and_intervals(run, bundle):
    process, address = run.start(
        *(bundle, "--port", 0, "--epsilon", 20, "--delta", 0, "--mechanism", "geometric", "--price", "epsilon:4")
    )
    key = run.with_others("clients", "add", "ann", "--epsilon", 8, "--delta", 0).stdout.strip()
    with Client(address, key) as client:
        assert client.model()["mechanism"] == "geometric"
        assert client.model()["price_per_row"]["losses"] == "pure:4.0"
        answers = client.answers([[30.0, 9000.0], [75.0, 55_000.0]])
        assert (answers.law, answers.on) == ("geometric", "logits")
        assert (answers.lower <= answers.probabilities).all()
        assert (answers.upper >= answers.probabilities).all()
        again = client.answers([[30.0, 9000.0], [75.0, 55_000.0]])
        assert (again.probabilities == answers.probabilities).all()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors


def test_it_is_planned_for(run, bundle):
    asked = ("plan", bundle, "--epsilon", 1, "--delta", 1e-6, "--queries", 20, "--json")
    found = [each for each in json.loads(run.with_others(*asked).stdout)["options"] if each["mechanism"] == "geometric"]
    assert [option["accepts"] for option in found] == ["any", "pure"]
    assert found[1]["epsilon"] == pytest.approx(0.05)
    assert found[1]["noise_multiplier"] == pytest.approx(
        np.sqrt(2) * GEOMETRIC(0.05).answer_noise(np.ones(1), 2).scale[0]
    )


@pytest.mark.slow
def test_it_is_audited_and_attacked_by_name(run, bundle):
    words = ("audit", "mechanism", "geometric", "--classes", 3, "--epsilon", 1, "--trials", 1000, "--seed", 0, "--json")
    assert json.loads(run.with_others(*words).stdout)["convicted"] is False
    sampled = run.with_others("audit", "sampler", "--draws", 20_000, "--releases", 100, "--scale", 256, "--json")
    assert "answers of geometric at epsilon:1" in sampled.stdout
    header, *lines = run.csv.splitlines()
    others = [
        f"{20 + i % 60},{1000 * (i % 60) + i % 7 + 10},{i},{'yes' if i % 60 > 30 else 'no'}" for i in range(CSV_ROWS)
    ]
    for name, rows in (("in.csv", lines[:CSV_ROWS]), ("out.csv", others)):
        (run.folder / name).write_text("\n".join([header, *rows]) + "\n")
    files = ("--members", "in.csv", "--non-members", "out.csv", "--label", "ok", "--ignore", "id")
    quick = ("--shadow-models", 2, "--shadow-records", 20, "--mechanism", "geometric", "--rho", 0.2, "--json")
    assert json.loads(run.with_others("attack", bundle, *files, *quick).stdout)["convicted"] is False


BROKEN = {
    "raise RuntimeError('its wheel is for another machine')\n": "its wheel is for another machine",
    "class Broken:\n    pass\n": "no subclass of Mechanism",
    "from dpserve.mechanisms.gaussian import Gaussian as Broken\n": "a mechanism 'gaussian' already",
    HALF_A_MECHANISM: "it lacks prices, at_price, from_losses, release",
}


def test_those_that_are_broken_are_left_out_with_a_warning(run):
    package = run.folder / "broken"
    (package / "broken-1.0.dist-info").mkdir(parents=True)
    (package / "broken-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    points = "[dpserve.mechanisms]\n"
    for place, source in enumerate(BROKEN):
        (package / f"broken{place}.py").write_text(source)
        points += f"x{place} = broken{place}:Broken\n"
    (package / "broken-1.0.dist-info" / "entry_points.txt").write_text(points)
    run.environment["PYTHONPATH"] = os.pathsep.join([str(package), *sys.path])
    done = run.in_a_new_process("audit", "mechanism", "label", "--classes", 2, "--epsilon", 1, "--trials", 20)
    for place, complaint in enumerate(BROKEN.values()):
        said = f"broken{place}:Broken of dpserve.mechanisms cannot be used and is left out: "
        assert complaint in done.stderr.partition(said)[2].partition("of dpserve.mechanisms")[0]
    assert "Traceback" not in done.stderr
