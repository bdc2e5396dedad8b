"""A watched folder of bundles: what tells that one was changed, removed, or cannot be read for a moment."""

import os
from pathlib import Path

import pytest

from service import watching
from service.models import Models
from service.watching import Watch, stamp_of
from training.sealing import CERTIFICATE_FILE

pytestmark = pytest.mark.anyio


class Served:
    """A predictor of which the name is all that matters here."""

    def __init__(self, name: str) -> None:
        self.certificate = self
        self.name = name


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "one"
    folder.mkdir(parents=True)
    (folder / CERTIFICATE_FILE).write_text("{}")
    return folder


async def opened(bundle: Path) -> Served:
    return Served(bundle.name)


async def test_a_bundle_that_cannot_be_read_for_a_moment_is_served_on(bundle, monkeypatch):
    def denied(_: Path) -> None:
        raise PermissionError

    models = Models()
    watch = Watch(bundle.parent, models, opened)
    await watch.look(first=True)
    monkeypatch.setattr(watching, "stamp_of", denied)
    await watch.look()
    assert models.names == ["one"]


async def test_a_removed_bundle_is_served_no_more(bundle):
    models = Models()
    watch = Watch(bundle.parent, models, opened)
    await watch.look(first=True)
    (bundle / CERTIFICATE_FILE).unlink()
    await watch.look()
    assert models.names == []


def test_another_file_of_the_same_time_and_size_is_a_change(bundle):
    before, file = stamp_of(bundle), bundle / CERTIFICATE_FILE
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    other = bundle.parent / "other"
    other.write_text("[]")
    os.utime(other, ns=times)
    other.replace(file)
    assert stamp_of(bundle) != before
