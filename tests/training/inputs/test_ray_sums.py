"""Training on Ray's workers gives the same bits as on one machine."""

import functools
import re
import subprocess
import sys
import time
import warnings

import numpy as np
import pandas as pd
import pytest

from benchmarks.serving.processes import free_port
from dpserve.mechanisms.gaussian_vector import mu_for, whole_picorho
from dpserve.training.errors import DataError, TrainingError
from dpserve.training.fitting.sensitivity import Convexity
from dpserve.training.inputs import sums
from dpserve.training.inputs.ray_sums import RaySums, Worker, read_on_ray
from dpserve.training.inputs.records import Units
from dpserve.training.inputs.table_records import read_numbers
from dpserve.training.inputs.tables import files_of
from dpserve.training.kinds.class_sums.train import train_class_sums
from dpserve.training.kinds.dpsgd.choices import choices_for
from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from tests.seeded import Seeded
from tests.training.conftest import identity

WHOLE = whole_picorho("rho:0.5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three files of uneven length and one without records; persons have records in several of them."""
    folder = tmp_path_factory.mktemp("table")
    generator = np.random.default_rng(0)
    for index, rows in enumerate((700, 0, 1500, 40)):
        X = generator.random((rows, 4))
        frame = pd.DataFrame(X, columns=list("abcd")).assign(
            who=generator.integers(0, 300, rows), ok=np.where(X[:, 0] + X[:, 1] > 1, "yes", "no")
        )
        frame.to_parquet(folder / f"{index}.parquet", index=False)
    return folder


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(sums, "SHARD", 256)


def reader(**changes):
    options = {"label": "ok", "classes": ["no", "yes"], "bounds": ["0:1"], "ignore": ("who",), "unit": None}
    return functools.partial(read_numbers, **options | changes)


def trained(records):
    """The weights of a head and a convexified one, the class sums, and a network's parameters."""
    phi = identity(records)
    head = train_head(records, Recipe("m", phi, 1.0, 1e-6), "lineage")
    convexity = Convexity(0.5, 100) if records.unit is None else None
    convexified = train_head(records, Recipe("m", phi, 1.0, 1e-6, convexity=convexity), "lineage")
    class_sums = train_class_sums(records, "m", phi, WHOLE, "lineage", Seeded(0))
    choices = choices_for(2000, mu_for(WHOLE), 2 * (phi.dimension + 1), steps=4)
    network = train_dpsgd(records, DpSgdRecipe("m", phi, choices, WHOLE), "lineage", Seeded(0))
    return head.weights, convexified.weights, class_sums.sums, class_sums.calibration.numbers, network.parameters[0]


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("unit", [None, "who"])
def test_workers_have_the_shards_and_the_sums_of_one_machine(folder, unit):
    """The workers' part without Ray between: two of them, files by turns."""
    here = reader(unit=unit)(str(folder))
    workers, lengths, total = (Worker(), Worker()), [], sums.Total()
    for index, file in enumerate(files_of(str(folder))):
        found = workers[index % 2].read(index, file, reader(unit=unit))
        if found is None:
            continue
        numbers = counts = None
        if unit is not None:
            place = {name.tobytes(): number for number, name in enumerate(here.units.names)}
            numbers = np.array([place[name.tobytes()] for name in found[2]])
            counts = np.bincount(here.units.of)[numbers]
        for at, length in enumerate(workers[index % 2].share(index, numbers, counts)):
            lengths.append(length)
            total.add(workers[index % 2].term(index, at, weighted, None))
    assert tuple(lengths) == here.sums.lengths == (256, 256, 188, 256, 256, 256, 256, 256, 220, 40)
    assert np.array_equal(total.value, here.sums.total(weighted))


def weighted(shard, _):
    return sum((X * y[:, None] * (1.0 if w is None else w[:, None])).sum(axis=0) for X, y, w in shard.blocks())


@pytest.mark.usefixtures("small_shards")
def test_threads_and_what_is_kept_change_no_bit(folder, monkeypatch):
    records = reader()(str(folder))
    expected = trained(records)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr(sums, "KEPT", 0)
    for one, other in zip(expected, trained(reader()(str(folder))), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow  # Ray tries for half a minute
def test_a_cluster_that_cannot_be_reached_is_named_with_what_to_do(folder):
    """In a process of its own, which Ray's client leaves unfit to start a Ray."""
    pytest.importorskip("ray")
    address = f"ray://127.0.0.1:{free_port()}"
    code = (
        "import sys; from dpserve.training.inputs.ray_sums import read_on_ray;"
        "read_on_ray(*sys.argv[1:2], sys.argv[2:], None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, address, *files_of(str(folder))], capture_output=True, text=True, check=False
    )
    assert re.search(rf"no Ray cluster can be used at {address} .*RAY_AUTH_TOKEN_PATH.*nothing charged", done.stderr)
    assert "Ray Client connection timed out" not in done.stderr


@pytest.fixture(scope="module")
def cluster():
    """A Ray of this machine's own with two workers."""
    ray = pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()


@pytest.mark.slow  # starts Ray
@pytest.mark.filterwarnings("ignore")
def test_two_workers_train_what_one_machine_trains(cluster, folder):
    files = files_of(str(folder))
    there = None
    for unit in (None, "who"):
        del there
        wait_for_two_free_processors(cluster)
        there = read_on_ray("ray", files, reader(unit=unit))
        here = reader(unit=unit)(str(folder))
        assert (len(there), there.unit, there.sums.lengths) == (2240, unit, here.sums.lengths)
        assert len({id(worker) for worker, _, _ in there.sums.shards}) == 2
        assert list(there.source) == list(here.source)
        if unit:
            np.testing.assert_array_equal(there.units.names, here.units.names)
        for one, other in zip(trained(here), trained(there), strict=True):
            np.testing.assert_array_equal(one, other)
    with pytest.raises(TrainingError, match="no free processor"):
        read_on_ray("ray", files, reader())
    assert isinstance(there.sums, RaySums)
    cluster.kill(there.sums.shards[0][0])
    with pytest.raises(TrainingError, match=r"a Ray worker was lost or failed.*nothing charged"):
        trained(there)
    del there
    wait_for_two_free_processors(cluster)
    with pytest.raises(DataError, match=r"0\.parquet, row .*, column 'a': .* is above the declared bound"):
        read_on_ray("ray", files, reader(bounds=["0:0.5"]))


def wait_for_two_free_processors(cluster):
    """Ray ends workers that nobody refers to, by and by."""
    end = time.monotonic() + 60
    while cluster.available_resources().get("CPU", 0) < 2 and time.monotonic() < end:
        time.sleep(0.05)


def test_weights_are_those_of_all_files():
    of = np.array([0, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(Units("who", of).weights(), Units.shares(np.bincount(of))[of])
