"""The sources of each picture, and which pictures are older than theirs.

A picture's file cannot be compared with a fresh one: browsers and versions of matplotlib draw a little otherwise. So a
digest of its sources, data and code that draws, is kept beside the pictures, as they were when it was made.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "images"
DIGESTS = FOLDER / "sources.json"

_PAGES = ("research/pictures/pages.py", "service/page/static/*.css", "service/page/static/*.js")
_CLIENT, _OWNER = ("account", "client"), ("acts", "owner")


@dataclass(frozen=True)
class Picture:
    """A picture. sources: patterns of the files, relative to the project, that it is made of; without: some of them."""

    name: str
    sources: tuple[str, ...]
    without: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The file."""
        return FOLDER / self.name

    def files(self) -> list[Path]:
        """Return the sources. Raises FileNotFoundError for a pattern that fits no file."""
        found: set[Path] = set()
        for pattern in self.sources:
            fitting = set(ROOT.glob(pattern))
            if not fitting:
                raise FileNotFoundError(f"{self.name} is made of {pattern}, and there is no such file")
            found |= fitting
        return sorted(each for each in found if each.name not in self.without)

    def digest(self) -> str:
        """Return 16 bytes of the names and contents of the sources, in hexadecimal digits."""
        digest = hashlib.blake2b(digest_size=16)
        for file in self.files():
            content = file.read_bytes()
            digest.update(f"{file.relative_to(ROOT).as_posix()} {len(content)}\n".encode() + content)
        return digest.hexdigest()


def _scripts(*others: tuple[str, ...]) -> tuple[str, ...]:
    """Return files that a page does not load: the other page's, and the documentation's."""
    return ("docs.js", *(f"{name}.js" for names in others for name in names))


PICTURES = (
    Picture("page.png", (*_PAGES, "service/page/static/client.html"), _scripts(_OWNER)),
    Picture("page-owner.png", (*_PAGES, "service/page/static/owner.html"), _scripts(_CLIENT)),
    Picture("accuracy.png", ("research/pictures/charts.py", "research/comparison/measured.csv")),
    Picture("analyses.png", ("dpserve/commands/explaining.py", "accounting/analyses.py")),
)


def kept_digests() -> dict[str, str]:
    """Return the digests of the sources that the pictures were made of, by name."""
    known: dict[str, str] = json.loads(DIGESTS.read_text("utf-8")) if DIGESTS.exists() else {}
    return known


def stale(pictures: Sequence[Picture] = PICTURES) -> list[Picture]:
    """Return the pictures that are not there, or whose sources have changed since they were made."""
    known = kept_digests()
    return [each for each in pictures if not each.path.exists() or known.get(each.name) != each.digest()]


def keep(made: Sequence[Picture]) -> None:
    """Note that these pictures are new."""
    known = kept_digests() | {each.name: each.digest() for each in made}
    names = {each.name for each in PICTURES}
    lines = {name: known[name] for name in sorted(known) if name in names}
    DIGESTS.write_text(json.dumps(lines, indent=2) + "\n", "utf-8")
