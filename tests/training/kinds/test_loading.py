"""Loading a pay-once model and answering from it: without the libraries that trained it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpserve.training.fit import Request, fit
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.registry import kind_named

ROOT = Path(__file__).parents[3]
OF_KIND = {"class-sums": {}, "weights": {"lam": 2.0}, "dpsgd": {"steps": 5}}


@pytest.mark.parametrize("kind", OF_KIND)
def test_no_optimiser_and_no_randomness_comes_with_a_model(kind, tmp_path):
    """SciPy's compiled parts are a fifth of an idle worker's memory; what draws noise, or random numbers, a tenth."""
    rng = np.random.default_rng(0)
    declaration = Declaration(("a", "b"), (0.0, 0.0), (1.0, 1.0), ("no", "yes"))
    records = Records(rng.uniform(size=(200, 2)), rng.integers(2, size=200), declaration, (b"of tests",))
    own = kind_named(kind).options(**OF_KIND[kind])
    fit(records, Request(name="m", lineage="l", kind=own, price=10**11, n=200), tmp_path / "m", state=tmp_path)
    heavy = ("scipy.special", "scipy.optimize", "scipy.sparse", "cryptography.hazmat", "numpy.random", "numpy.ma.")
    program = (
        "import sys, numpy as np; from pathlib import Path; from dpserve.training.kinds.loading import load_model;"
        f"model = load_model(Path({str(tmp_path / 'm')!r})); model.answers(np.full((3, 2), 0.5));"
        f"print([name for name in sys.modules if name.startswith({heavy!r})])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "[]"
