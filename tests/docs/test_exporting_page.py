"""docs/exporting.md: its commands run, and what it shows of Ray Data scores a batch."""

import re
import shlex

import numpy as np
import pytest

from dpserve.training.kinds.loading import load_model
from tests.dpserve.conftest import CommandLine
from tests.dpserve.test_exporting import CSV, ROWS, SUMS, TRAIN

from .test_shown_commands import DOCS, shown_commands

pytestmark = pytest.mark.slow

PAGE = DOCS / "exporting.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with a model of a lineage with a budget."""
    found = CommandLine(tmp_path_factory.mktemp("page"))
    (found.folder / "r.csv").write_text(CSV)
    found(*TRAIN[:-1], "adult", *SUMS)
    found("lineage", "set-budget", "adult", "--epsilon", "5", "--delta", "1e-5")
    for words in shown_commands(PAGE):
        found(*words)
    return found


def test_its_commands_write_what_it_says(run):
    written = {path.name for path in run.folder.iterdir() if path.is_file()} - {"r.csv", "own.csv"}
    assert written == {"adult.onnx", "adult.safetensors"}


def test_what_it_shows_of_ray_data_scores_a_batch(run):
    (block,) = re.findall(r"```python\n(import numpy, onnxruntime, ray\n.*?)```", PAGE.read_text(), re.DOTALL)
    defined = {"FEATURES": ("age", "income")}
    exec(block.partition("processes = ")[0], defined)
    batch = {"age": ROWS[:, 0].astype("int64"), "income": ROWS[:, 1]}
    scored = defined["Score"](run.folder / "adult.onnx")(batch)
    model = load_model(run.folder / "adult")
    np.testing.assert_allclose(scored["probabilities"], model.values(ROWS), rtol=0, atol=1e-6)
    assert scored["label"].tolist() == np.array(["no", "yes"])[model.values(ROWS).argmax(axis=1)].tolist()
    assert shlex.join(scored) == "age income label probabilities"
