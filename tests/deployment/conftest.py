"""The manifests as kustomize renders them, with secrets of the tests' own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent
HA = "ha"
"""The overlay of three Valkeys and their Sentinels."""
OVERLAYS = ("embedded", "redis", "gpu", HA)
SECOND = "second"
"""The overlay of a service beside that of `redis`, on its store."""
EVERYTHING = "everything"
"""The gpu overlay, which is all of the redis one and more, with the components."""
LOAD_BUNDLE = "load-bundle"
"""The pod that is there before the others."""
ENVS = ("admin.env", "metrics.env", "ha.env")
"""Files that the owner writes into components."""
STORES = ("secret.env", "owner.env")
"""Files with the store's address, for the service and the owner's jobs."""
WRITERS = {"secret.env": "store-users.sh", "ha.env": "ha-users.sh", "tls.csr": "store-certificate.sh"}
"""The scripts that docs/deploying.md has the owner run, each by a file that it writes."""
COMPONENTS = ("gateway", "gateway-tls", "ingress", "monitoring", "tls")


def kustomize(folder):
    """Render a folder; kubectl has kustomize built in, and asks no cluster."""
    return subprocess.run(
        [SCRIPTS / "kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60, check=False
    )


def commands_that_write(name):
    """The script that writes a file."""
    return (ROOT / "k8s" / WRITERS[name]).read_text()


@pytest.fixture(scope="session")
def k8s(tmp_path_factory):
    """A copy of k8s/ with what an owner writes into it."""
    folder = tmp_path_factory.mktemp("k8s") / "k8s"
    shutil.copytree(ROOT / "k8s", folder, ignore=shutil.ignore_patterns("users.acl", *STORES, *ENVS))
    subprocess.run(["bash", "-ec", commands_that_write("secret.env")], cwd=folder.parent, check=True, timeout=60)
    for name in ("admin", "metrics"):
        file = folder / "components" / "monitoring" / f"{name}.env"
        file.write_text(f"DPSERVE_{name.upper()}_KEY=the-{name}-key-of-twenty-characters-or-more\n")
    shutil.copy(folder / "overlays" / "redis" / "secret.env", folder / "overlays" / SECOND)
    everything = folder / "overlays" / EVERYTHING
    everything.mkdir()
    (everything / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources: [../gpu]\ncomponents: [{', '.join(f'../../components/{each}' for each in COMPONENTS)}]\n"
    )
    shutil.copytree(folder, folder.parent / HA / "k8s")
    subprocess.run(["bash", "-ec", commands_that_write("ha.env")], cwd=folder.parent / HA, check=True, timeout=60)
    shutil.copy(folder.parent / HA / "k8s" / "components" / HA / "ha.env", folder / "components" / HA)
    return folder


@pytest.fixture(scope="session")
def k8s_of_ha(k8s):
    """The same, with the addresses of Sentinels in place of that of one Valkey."""
    return k8s.parent / HA / "k8s"


class Rendered(dict):
    """The resources of overlays, by name: each is rendered when a test first asks for it."""

    def __init__(self, k8s, k8s_of_ha):
        super().__init__()
        self._folders = {HA: k8s_of_ha / "overlays" / HA, LOAD_BUNDLE: k8s / LOAD_BUNDLE}
        self._folders |= {name: k8s / "overlays" / name for name in (*OVERLAYS, SECOND, EVERYTHING) if name != HA}

    def __missing__(self, overlay):
        done = kustomize(self._folders[overlay])
        assert done.returncode == 0, done.stderr
        assert "warning" not in done.stderr.lower(), done.stderr
        self[overlay] = list(yaml.safe_load_all(done.stdout))
        return self[overlay]


@pytest.fixture(scope="session")
def rendered(k8s, k8s_of_ha):
    """Every overlay's resources, by its name, and the pod that loads the bundle."""
    return Rendered(k8s, k8s_of_ha)
