"""Run every step of the Dockerfile in an empty directory tree, then the image's command and health check in it.

    python3 deploy/rehearse_image.py [--extras jwt,otel,torch]

No container engine is needed: a mount namespace, chroot, and this machine's /usr, /etc and Python in place of the base
image, all read-only. The last stage runs as the Dockerfile's user on a read-only root, serves a small model from its
state folder, and is told to stop. Needs root or user namespaces, and a package registry for pip.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASE = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev", "/proc")
KNOWN = {
    "ARG",
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "HEALTHCHECK",
    "LABEL",
    "RUN",
    "STOPSIGNAL",
    "USER",
}
KNOWN |= {"VOLUME", "WORKDIR"}
PORT = "18642"


@dataclass
class Stage:
    """One FROM and what follows it."""

    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)


def stages(text: str) -> tuple[dict[str, str], list[Stage]]:
    """Return the arguments before the first FROM and the stages. Raises ValueError for what is not understood."""
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"(?m)^#.*\n", "", text))
    first: dict[str, str] = {}
    found: list[Stage] = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, _, rest = line.partition(" ")
        if word not in KNOWN:
            raise ValueError(f"the Dockerfile's {word} is not understood here")
        if word == "FROM":
            found.append(Stage(rest.rpartition(" AS ")[2] if " AS " in rest else f"stage-{len(found)}"))
        elif not found:
            name, _, value = rest.partition("=")
            first[name] = value
        else:
            found[-1].steps.append((word, rest.strip()))
    return first, found


def in_context(path: Path) -> bool:
    """Whether .dockerignore lets a file of the repository into an image."""
    name = path.relative_to(ROOT).as_posix()
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    allowed = {line[1:] for line in lines if line[0] == "!"}
    refused = [line.removeprefix("**/") for line in lines if line.startswith("**/")]
    return name.split("/")[0] in allowed and not any(
        fnmatch(part, each) for part in name.split("/") for each in refused
    )


class Tree:
    """The directory trees of the stages, and how to run a command in one of them."""

    def __init__(self, folder: Path, extras: str | None) -> None:
        """folder: empty. extras: the build argument EXTRAS; None leaves the Dockerfile's own."""
        self.folder = folder
        self.arguments = {} if extras is None else {"EXTRAS": extras}
        self.environment: dict[str, dict[str, str]] = {}
        self.cwd: dict[str, str] = {}
        self.last: dict[str, str] = {}

    def root(self, stage: str) -> Path:
        """Return the folder that is / for a stage."""
        return self.folder / stage

    def build(self, stage: Stage) -> None:
        """Carry out the steps of a stage, one after the other."""
        print(f"== {stage.name}", flush=True)
        self.root(stage.name).mkdir()
        self.environment[stage.name], self.cwd[stage.name] = {"PATH": _path()}, "/"
        known = {}
        for word, rest in stage.steps:
            print(f"   {word} {rest}"[:100], flush=True)
            if word == "ARG":
                name, _, default = rest.partition("=")
                known[name] = self.arguments.get(name, default.strip('"'))
            elif word == "ENV":
                for pair in shlex.split(rest):
                    name, _, value = pair.partition("=")
                    self.environment[stage.name][name] = value.replace("$PATH", _path())
            elif word == "WORKDIR":
                self.cwd[stage.name] = rest
                (self.root(stage.name) / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            elif word == "COPY":
                self.copy(stage.name, shlex.split(rest))
            elif word == "RUN":
                self.run(stage.name, ["sh", "-ec", rest], known)
            else:
                self.last[word] = rest

    def copy(self, stage: str, words: list[str]) -> None:
        """Carry out a COPY."""
        options = dict(word[2:].split("=") for word in words if word.startswith("--"))
        *sources, target = [word for word in words if not word.startswith("--")]
        source_root = self.root(options["from"]) if "from" in options else ROOT
        into = self.root(stage) / str(Path(self.cwd[stage], target)).lstrip("/")
        for source in sources:
            path = source_root / source.strip("/")
            if path.is_dir():
                keep = (lambda _: True) if "from" in options else in_context
                _copy_folder(path, into, keep, options.get("chown"))
            else:
                assert "from" in options or in_context(path), f".dockerignore leaves {source} out"
                place = into / path.name if target.endswith("/") else into
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, place)

    def run(self, stage: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        """Run a command in a stage's tree. Raises CalledProcessError."""
        words, values = self.inside(stage, command)
        subprocess.run(words, env=_of_pip() | values | (environment or {}), check=True)

    def inside(self, stage: str, command: list[str], user: str | None = None) -> tuple[list[str], dict[str, str]]:
        """Return the command that runs another inside a stage's tree, and its environment.

        user: `uid:gid`, for whom nothing but the state folder and /tmp can be written, the root being read-only.
        """
        root = self.root(stage)
        (root / "tmp").mkdir(exist_ok=True)
        lines = ["mount --make-rprivate /", f"mount --bind {root} {root}"]
        for path in (*BASE, sys.base_prefix):
            place = root / path.lstrip("/")
            if Path(path).is_symlink():
                if not place.is_symlink():
                    place.symlink_to(Path(path).readlink())
                continue
            place.mkdir(parents=True, exist_ok=True)
            lines.append(f"mount --rbind {path} {place}")
        lines.append(f"mount -t tmpfs -o mode=1777 none {root}/tmp")
        if user:
            lines.append(f"mount --bind {root}/var/lib/dpserve {root}/var/lib/dpserve")
            lines.append(f"mount -o remount,bind,ro {root}")
        other = [f"--userspec={user}"] if user and os.geteuid() == 0 else []
        inner = f"cd {self.cwd[stage]} && exec {shlex.join(command)}"
        lines.append("exec " + shlex.join(["chroot", *other, str(root), "sh", "-c", inner]))
        alone = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
        return [*alone, "sh", "-ec", "\n".join(lines)], self.environment[stage]


def serve(tree: Tree, stage: str) -> None:
    """Run the image's command on a read-only root as its user: serve a model, be healthy, stop when told."""
    user, state = tree.last["USER"], tree.root(stage) / "var/lib/dpserve"
    owner = tuple(map(int, user.split(":"))) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    assert os.geteuid() != 0 or (state.stat().st_uid, state.stat().st_gid) == owner, (
        "the state folder is not the user's"
    )

    def ask(*command: str) -> subprocess.CompletedProcess[str]:
        words, values = tree.inside(stage, [*command], user)
        return subprocess.run(words, env=values | {"DPSERVE_PORT": PORT}, capture_output=True, text=True, timeout=300)

    entry = json.loads(tree.last["ENTRYPOINT"])
    rows = "\n".join(f"{i % 7},{i % 5},{'yes' if i % 7 > 3 else 'no'}" for i in range(200))
    (state / "own.csv").write_text("a,b,ok\n" + rows + "\n")
    training = "train --data own.csv --label ok --classes no,yes --bounds a=0:10 --bounds b=0:10 --lam 10 --out model"
    trained = ask(*entry, *training.split())
    assert trained.returncode == 0, trained.stderr
    refused = ask("sh", "-c", "touch /opt/dpserve/written")
    assert refused.returncode != 0, "the root file system can be written"
    health = json.loads(tree.last["HEALTHCHECK"].partition(" CMD ")[2])
    assert ask(*health).returncode == 1, "a container where nothing listens passes for healthy"
    words, values = tree.inside(stage, [*entry, *json.loads(tree.last["CMD"])], user)
    values = values | {"DPSERVE_PORT": PORT, "DPSERVE_BUNDLE": "model", "DPSERVE_EPSILON": "3", "DPSERVE_DELTA": "1e-6"}
    service = subprocess.Popen(words, env=values, stdout=subprocess.PIPE, text=True)
    try:
        said = next((line for line in service.stdout or () if line.startswith("dpserve: serving")), "")
        assert said, "the service did not come up"
        healthy = ask(*health)
        assert healthy.returncode == 0, healthy.stdout + healthy.stderr
        print(f"== {said.strip()}; healthy", flush=True)
    finally:
        service.terminate()
        assert service.wait(60) in (0, -15, 143), service.returncode
    print("== stopped when told", flush=True)


def _copy_folder(source: Path, target: Path, keep: Callable[[Path], bool], owner: str | None) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir() and not path.is_symlink():
            place.mkdir(exist_ok=True)
        elif keep(path):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place, follow_symlinks=False)
        if owner and os.geteuid() == 0:
            os.chown(place, *map(int, owner.split(":")), follow_symlinks=False)


def _path() -> str:
    return f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def _of_pip() -> dict[str, str]:
    """Return what this machine's pip is told: where its registry is, and whom it trusts."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    found = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or "CERT" in name}
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        if name in ("global.index-url", "user.index-url", "global.trusted-host"):
            found["PIP_" + name.split(".")[1].replace("-", "_").upper()] = value.strip("'")
    return found


def main() -> None:
    """Build every stage of the Dockerfile in a temporary folder, and serve from the last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", help="the build argument EXTRAS")
    _, found = stages((ROOT / "Dockerfile").read_text())
    with tempfile.TemporaryDirectory(prefix="dpserve-image-") as folder:
        tree = Tree(Path(folder), parser.parse_args().extras)
        for stage in found:
            tree.build(stage)
        serve(tree, found[-1].name)


if __name__ == "__main__":
    main()
