"""Runs a page from top to bottom, as a reader would who pastes what it shows, and compares what is printed.

A block `console` holds commands after `$ ` and what they print; `...` stands for any lines, or within one for anything.
A command that ends with `&` goes on in the background until the walkthrough ends. A block `python` is run; one with
a title is written to that file instead.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent

from tests.command_line import ran

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^( *)```(\w+)([^\n]*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def steps(text):
    """A page's steps in order: ("console", command, [lines]), ("python", code) or ("file", name, content)."""
    found = []
    for _, language, header, indented in _BLOCK.findall(text):
        body = dedent(indented)
        title = re.search(r'title="(.*?)"', header)
        if title:
            found.append(("file", title[1], body))
        elif language == "python":
            found.append(("python", body))
        elif language == "console":
            for line in body.splitlines():
                if line.startswith("$ "):
                    found.append(("console", line[2:], []))
                else:
                    found[-1][2].append(line)
    return found


def matches(expected, printed):
    """Whether the lines agree; `...` alone stands for any lines, and within a line for anything in it."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n" for line in expected
    )
    return re.fullmatch(pattern, "".join(line.rstrip() + "\n" for line in printed)) is not None


_PORTS = (8000, 8001, 8002, 9000)
"""The ports that pages show, each of which stands for a free one."""


def _free_ports():
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in _PORTS]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Walkthrough:
    """A folder, a home of its own, and what was started in it."""

    def __init__(self, folder):
        """folder: where the reader is; empty."""
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.ports = dict(zip(map(str, _free_ports()), map(str, _PORTS), strict=True))
        self.background = []
        self.status = 0
        (folder / "bin").mkdir()
        for name, module in (("dpserve", " -m dpserve"), ("python3", "")):
            (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{module} "$@"\n')
            (folder / "bin" / name).chmod(0o755)
        port, admin_port, *_ = self.ports
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("DPSERVE_")} | {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(DOCS.parent), os.environ.get("PYTHONPATH", "")]),
            "DPSERVE_HOME": str(folder / "home"),
            "DPSERVE_PORT": port,
            "DPSERVE_ADMIN_PORT": admin_port,
            "COLUMNS": "100",
            "NO_COLOR": "1",
        }

    def __enter__(self):
        """Begin."""
        return self

    def __exit__(self, *_):
        """End what was left running."""
        for process in self.background:
            process.terminate()
            process.communicate(timeout=60)

    def walk(self, page, *, left_out="\n"):
        """Take every step of a page of docs/; fail at the first that does not print what the page says.

        left_out: the beginning of commands and programs that are not run.
        """
        taken = steps((DOCS / page).read_text())
        assert taken, page
        for kind, what, *rest in taken:
            if what.startswith(left_out):
                continue
            if kind == "file":
                (self.folder / what).write_text(self.here(rest[0]))
            elif kind == "python":
                self.run([sys.executable, "-c", self.here(what)])
                assert self.status == 0, what
            else:
                printed = self.start(what, rest[0]) if what.endswith(" &") else self.run_shell(what)
                assert matches(rest[0], printed), f"{page}: $ {what}\n" + "\n".join(printed)

    def here(self, text):
        for port, said in self.ports.items():
            text = re.sub(rf"(127\.0\.0\.1:|port[ =]){said}\b", rf"\g<1>{port}", text)
        return text

    def _said(self, text):
        for port, said in self.ports.items():
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{said}")
        return text.splitlines()

    def run_shell(self, command):
        if command.startswith("dpserve ") and not set(command) & set("|&;<>$`*~"):
            return self.run_dpserve(shlex.split(self.here(command))[1:])
        return self.run(["bash", "-c", f"(exit {self.status}); {self.here(command)}"])

    def run(self, words):
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300, check=False
        )
        return self._heard(done)

    def run_dpserve(self, words):
        """Return the lines that one command prints."""
        return self._heard(ran(words, self.folder, self.environment, seconds=300))

    def _heard(self, done):
        self.status = done.returncode
        assert "Traceback" not in done.stderr, done.stderr
        return self._said(done.stdout + (done.stderr if done.returncode else ""))

    def start(self, command, expected):
        """Start a command and return as many lines as are expected of it."""
        words = shlex.split(self.here(command.removesuffix(" &")))
        errors = self.folder.parent / f"{self.folder.name}-errors-{len(self.background)}"
        with errors.open("w") as file:
            process = subprocess.Popen(
                words, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=file, text=True
            )
        self.background.append(process)
        said = [self._said(line.rstrip())[0] for _, line in zip(expected, process.stdout, strict=False)]
        assert len(said) == len(expected), f"{command}\n{errors.read_text()}"
        return said
