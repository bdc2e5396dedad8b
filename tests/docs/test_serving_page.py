"""The commands of docs/serving.md: the owner's print what it says, and every `serve` comes up as it stands there."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.dpserve.test_https import write_certificate

from .test_accounting_page import commands, matches, printed

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
CSV = "a,b,ok\n" + "".join(f"{place % 10},{place % 7},{'yes' if place % 10 > 4 else 'no'}\n" for place in range(100))
TRAIN = "dpserve train head --data own.csv --lineage own --label ok --classes no,yes --lam 1 --bounds 0:10 --out model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model that has no lineage yet, a certificate, and a provider's keys."""
    found = tmp_path_factory.mktemp("page")
    (found / "own.csv").write_text(CSV)
    printed(TRAIN, found)
    certificate, key = write_certificate(found, "own")
    certificate.rename(found / "cert.pem")
    key.rename(found / "key.pem")
    public = jwt.algorithms.ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True)
    (found / "keys.json").write_text(json.dumps({"keys": [public | {"kid": "one"}]}))
    return found


def test_every_command_does_what_the_page_says(folder):
    ran = commands(PAGE.read_text())
    served = 0
    for command, expected in ran:
        if command.startswith("dpserve serve"):
            assert comes_up(command, folder), command
            served += 1
        else:
            found = printed(command, folder)
            assert matches(expected, found), command + "\n" + "\n".join(found)
            assert not any(line.startswith(("dpserve: ", "Usage: ")) for line in found), (
                command + "\n" + "\n".join(found)
            )
    assert served == 5
    assert len(ran) >= 11


def comes_up(command, folder):
    """Whether a service says that it serves; it is stopped again."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "dpserve", *shlex.split(command)[1:], "--port", "0"],
        cwd=folder,
        env=os.environ | {"DPSERVE_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        return any("serving model on" in line for line in process.stdout)
    finally:
        process.terminate()
        process.communicate(timeout=60)
