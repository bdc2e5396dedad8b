"""An exported model in MLflow, from its package, as docs/exporting.md says: it clips there, too."""

import json
import re
import subprocess
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from benchmarks.serving.environments import make_environment
from training.export.files import exported

from .test_files import LOWER, UPPER, model_of

ROOT = Path(__file__).parents[3]
REQUIREMENTS = f"mlflow-skinny==3.17.2\npandas\nscikit-learn=={version('scikit-learn')}\n"
ASKED = """
import json, sys
import pandas
rows = json.load(sys.stdin)
loaded = mlflow.pyfunc.load_model("adult")
by_name = pandas.DataFrame(rows, columns=json.loads(loaded.metadata.metadata["feature_names"]))
answers = [loaded.predict(each).tolist() for each in (pandas.DataFrame(rows), by_name)]
print(json.dumps([answers, loaded.metadata.metadata["beyond_bounds"], loaded.metadata.metadata["certificate"]]))
"""


def program_in_docs():
    page = (ROOT / "docs" / "exporting.md").read_text()
    (found,) = re.findall(r"```python\n(import joblib\nimport mlflow.*?)\n```", page, re.DOTALL)
    return found


@pytest.mark.slow  # it installs MLflow
@pytest.mark.parametrize("clips", [False, True])
def test_mlflow_draws_values_back_and_says_so(clips, tmp_path):
    python = make_environment(ROOT / ".bench" / "mlflow", REQUIREMENTS)
    model = model_of("class-sums", "fourier", 3)
    model = replace(model, certificate=model.certificate.model_copy(update={"clips": clips}))
    (tmp_path / "adult.joblib").write_bytes(exported(model, "sklearn").content)
    rows = np.vstack([np.random.default_rng(0).uniform(LOWER, UPPER, (10, 5)), np.full((1, 5), 1e6), [[-1e6] * 5]])
    done = subprocess.run(
        [python, "-c", program_in_docs() + ASKED],
        input=json.dumps(rows.tolist()),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers, beyond, certificate = json.loads(done.stdout.splitlines()[-1])
    wanted = model.probabilities(np.clip(rows, LOWER, UPPER))
    for each in answers:
        np.testing.assert_allclose(each, wanted, rtol=0, atol=1e-6)
    assert beyond.startswith("drawn back to the declared bounds")
    assert json.loads(certificate).get("clips", False) is clips
    assert "feature names" not in done.stderr
