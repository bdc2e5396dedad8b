"""MLflow's scoring client, from its package, asks as docs/clients-guide.md says: the key, and frames with dates."""

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.serving.environments import make_environment
from tests.service.people import ROW

from .test_http import PRICE

ROOT = Path(__file__).parents[2]
REQUIREMENTS = "mlflow-skinny==3.17.2\npandas\nscipy\nrequests\n"


def program_in_docs(port):
    """Return the page's program at a service's port, with rows of every kind of column as pandas has them."""
    page = (ROOT / "docs" / "clients-guide.md").read_text()
    (found,) = re.findall(r"```python\n(import os\n\nimport pandas\nfrom mlflow.*?)\n```", page, re.DOTALL)
    rows = f"""rows = pandas.DataFrame([{ROW!r}, {ROW!r}])
rows["since"] = pandas.to_datetime(rows["since"])
rows.loc[1, "since"] = pandas.NaT
"""
    asked = re.sub(r"^rows = .*$", lambda _: rows, found, flags=re.MULTILINE)
    asked = re.sub(r"print\((.*)\)  #.*", r"print(\1.to_json(orient='values', double_precision=15))", asked)
    return asked.replace("8000", port)


@pytest.mark.slow  # it installs MLflow
def test_mlflow_s_client_asks_with_a_key_and_dates(start, by_columns, tmp_path):
    python = make_environment(ROOT / ".bench" / "mlflow-client", REQUIREMENTS)
    service = start(by_columns, lineage_rho=20 * PRICE / 1e12)
    key = service.add_client()
    (tmp_path / "alice.key").write_text(key + "\n")
    done = subprocess.run(
        [python, "-c", program_in_docs(service.url.rpartition(":")[2])],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "NETRC"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = service.http(key).post("/predict", json={"instances": [ROW, ROW | {"since": None}]}).json()
    np.testing.assert_allclose(json.loads(done.stdout.splitlines()[-1]), said["predictions"], rtol=0, atol=1e-9)
    assert said["receipt"]["charged_rows"] == 0
    assert (tmp_path / "alice.netrc").stat().st_mode & 0o777 == 0o600
