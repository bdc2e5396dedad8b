"""The commands of docs/serving.md: the owner's print what it says, and every `serve` comes up as it stands there."""

import json
import shlex
import subprocess
import sys

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.dpserve.test_https import write_certificate

from .walkthrough import DOCS, Walkthrough, matches, steps

pytestmark = pytest.mark.slow

PAGE = DOCS / "serving.md"
CSV = "a,b,ok\n" + "".join(f"{place % 10},{place % 7},{'yes' if place % 10 > 4 else 'no'}\n" for place in range(100))
TRAIN = "dpserve train head --data own.csv --lineage own --label ok --classes no,yes --lam 1 --bounds 0:10 --out model"


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """A reader in a folder with a model that has no lineage yet, a certificate, and a provider's keys."""
    with Walkthrough(tmp_path_factory.mktemp("page")) as found:
        (found.folder / "own.csv").write_text(CSV)
        found.run_shell(TRAIN)
        certificate, key = write_certificate(found.folder, "own")
        certificate.rename(found.folder / "cert.pem")
        key.rename(found.folder / "key.pem")
        public = jwt.algorithms.ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True)
        (found.folder / "keys.json").write_text(json.dumps({"keys": [public | {"kid": "one"}]}))
        yield found


def test_every_command_does_what_the_page_says(reader):
    shown = [step[1:] for step in steps(PAGE.read_text()) if step[0] == "console"]
    served = 0
    for command, expected in shown:
        if command.startswith("dpserve serve"):
            assert comes_up(command, reader), command
            served += 1
        else:
            found = reader.run_shell(command)
            assert matches(expected, found), command + "\n" + "\n".join(found)
            assert not any(line.startswith(("dpserve: ", "Usage: ")) for line in found), command
    assert served == 5
    assert len(shown) >= 11


def comes_up(command, reader):
    """Whether a service says that it serves; it is stopped again."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "dpserve", *shlex.split(command)[1:], "--port", "0"],
        cwd=reader.folder,
        env=reader.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        return any("serving model on" in line for line in process.stdout)
    finally:
        process.terminate()
        process.communicate(timeout=60)
