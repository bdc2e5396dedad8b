"""A watched folder of bundles: what tells that one was changed, removed, or cannot be read for a moment."""

import io
import logging
import os
import shutil
from itertools import permutations
from pathlib import Path

import pytest

from accounting.ledger import LedgerUnavailable
from service import watching
from service.errors import CannotServe
from service.models import Models
from service.telemetry.logs import TextLines
from service.watching import NamedBundle, Version, Watch, stamp_of
from training.bundles.sealing import CERTIFICATE_FILE
from training.errors import BundleError

pytestmark = pytest.mark.anyio


class Served:
    """A predictor of which the name, the lineage and the id are all that matters here."""

    def __init__(self, name: str, folder: Path = Path(), lineage: str = "people", model_id: str = "") -> None:
        self.certificate = self
        self.name = name
        self.folder = folder
        self.lineage = lineage
        self.model_id = model_id or f"the model in {folder.name or name}"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "one"
    folder.mkdir(parents=True)
    (folder / CERTIFICATE_FILE).write_text("{}")
    return folder


async def verified(bundle: Path) -> Served:
    return Served(bundle.name)


async def opened(version: Version, _: bool) -> Served:
    return await verified(version.bundle)


async def test_a_bundle_that_cannot_be_read_for_a_moment_is_served_on(bundle, monkeypatch):
    def denied(_: Path) -> None:
        raise PermissionError

    models = Models()
    watch = Watch(bundle.parent, models, verified, opened)
    await watch.look(first=True)
    monkeypatch.setattr(watching, "stamp_of", denied)
    await watch.look()
    assert models.names == ["one"]


async def test_a_removed_bundle_is_served_no_more(bundle):
    models = Models()
    watch = Watch(bundle.parent, models, verified, opened)
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


class Process:
    """One process of a service: what it serves, by name the folder that it comes from."""

    def __init__(self, folder: Path) -> None:
        self.models = Models()
        self.opened: list[str] = []
        self.promoted: dict[str, tuple[str, ...]] = {}
        self.ledger_answers = True
        self._watch = Watch(folder, self.models, self._verified, self._opened, self._promoted)

    async def _verified(self, bundle: Path) -> Served:
        text = (bundle / CERTIFICATE_FILE).read_text()
        if not text:
            raise BundleError("damaged")
        name, _, lineage = text.partition(" of ")
        return Served(name, bundle, lineage or "people")

    async def _opened(self, version: Version, _: bool) -> Served:
        self.opened.append(version.bundle.name)
        if (version.bundle / "unaffordable").exists():
            raise CannotServe("too dear")
        read = await self._verified(version.bundle)
        read.name = version.name
        return read

    async def _promoted(self, lineage: str) -> dict[str, tuple[str, ...]]:
        if not self.ledger_answers:
            raise LedgerUnavailable("gone")
        return self.promoted if lineage == "people" else {}

    def promote(self, *folders: str, name: str = "model") -> None:
        self.promoted[name] = tuple(f"the model in {each}" for each in folders)

    async def look(self, *, first: bool = False) -> None:
        await self._watch.look(first=first)

    @property
    def served(self) -> dict[str, str]:
        return {each.certificate.name: each.folder.name for each in self.models}


def put(folder: Path, bundle: str, name: str) -> None:
    (folder / bundle).mkdir(exist_ok=True)
    (folder / bundle / CERTIFICATE_FILE).write_text(name)


ACTS = {
    "zz": lambda folder: put(folder, "zz", "model"),
    "aa": lambda folder: put(folder, "aa", "model"),
    "mm, of another name": lambda folder: put(folder, "mm", "other"),
    "aa is damaged": lambda folder: put(folder, "aa", ""),
    "zz takes the other's name": lambda folder: put(folder, "zz", "other"),
    "aa goes": lambda folder: shutil.rmtree(folder / "aa", ignore_errors=True),
}


@pytest.mark.parametrize("order", [*permutations(ACTS, 4)], ids=", ".join)
async def test_processes_that_start_at_different_times_never_serve_different_models_under_a_name(tmp_path, order):
    processes = []
    for act in order:
        ACTS[act](tmp_path)
        for process in processes:
            await process.look()
            await process.look()
        processes.append(Process(tmp_path))
        await processes[-1].look(first=True)
        newest = processes[-1].served
        for process in processes:
            # What a bundle was before it was damaged is served on where it was served, unless another has its name.
            assert {name: process.served[name] for name in newest} == newest


async def test_when_the_first_of_a_name_goes_the_next_is_served_and_only_then_opened(tmp_path):
    put(tmp_path, "aa", "model")
    put(tmp_path, "zz", "model")
    process = Process(tmp_path)
    await process.look(first=True)
    assert (process.served, process.opened) == ({"model": "aa"}, ["aa"])
    shutil.rmtree(tmp_path / "aa")
    await process.look()
    assert (process.served, process.opened) == ({"model": "zz"}, ["aa", "zz"])
    put(tmp_path, "aa", "model")
    await process.look()
    await process.look()
    assert process.served == {"model": "aa"}


async def test_a_first_bundle_that_cannot_be_paid_for_leaves_its_name_to_nobody(tmp_path):
    put(tmp_path, "zz", "model")
    early, late = Process(tmp_path), Process(tmp_path)
    await early.look(first=True)
    put(tmp_path, "aa", "model")
    (tmp_path / "aa" / "unaffordable").touch()
    await early.look()
    await early.look()
    await late.look(first=True)
    assert early.served == late.served == {}
    shutil.rmtree(tmp_path / "aa")
    for process in (early, late):
        await process.look()
        assert process.served == {"model": "zz"}


@pytest.mark.parametrize("error", [OverflowError, RecursionError, MemoryError, KeyError, ZeroDivisionError, OSError])
async def test_whatever_a_bundle_raises_refuses_that_bundle_alone(tmp_path, error):
    put(tmp_path, "aa", "first")
    put(tmp_path, "zz", "last")

    async def verified(bundle: Path) -> Served:
        if bundle.name == "aa":
            raise error
        return Served("last")

    models = Models()
    await Watch(tmp_path, models, verified, lambda version, _: verified(version.bundle)).look(first=True)
    assert models.names == ["last"]


async def test_what_failed_for_want_of_memory_is_tried_again(tmp_path):
    put(tmp_path, "aa", "model")
    failures = [MemoryError()]

    async def verified(bundle: Path) -> Served:
        if failures:
            raise BundleError("damaged") from failures.pop()
        return Served("model")

    models = Models()
    watch = Watch(tmp_path, models, verified, lambda version, _: verified(version.bundle))
    await watch.look(first=True)
    assert models.names == []
    await watch.look()
    assert models.names == ["model"]


async def test_a_folder_whose_name_has_a_line_break_is_refused_in_one_line(tmp_path):
    put(tmp_path, "aa\n2026-01-01 INFO dpserve: all is well", "")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextLines())
    logging.getLogger("dpserve").addHandler(handler)
    try:
        await Process(tmp_path).look(first=True)
    finally:
        logging.getLogger("dpserve").removeHandler(handler)
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("damaged")


def test_links_to_nothing_and_to_themselves_are_part_of_a_stamp(bundle):
    (bundle / "nothing").symlink_to(bundle / "missing")
    (bundle / "itself").symlink_to(bundle / "itself")
    assert [each[0] for each in stamp_of(bundle)] == [CERTIFICATE_FILE, "itself", "nothing"]


async def looked(process: Process) -> dict[str, str]:
    """Return what a process serves after two looks."""
    await process.look()
    await process.look()
    return process.served


async def test_a_promoted_version_takes_the_name_and_gives_it_back(tmp_path):
    for folder in ("aa", "mm", "zz"):
        put(tmp_path, folder, "model")
    process = Process(tmp_path)
    await process.look(first=True)
    assert process.served == {"model": "aa"}
    assert process.opened == ["aa"], "what stands by is neither charged nor opened"
    process.promote("zz")
    assert await looked(process) == {"model": "zz"}
    process.promote("aa", "zz")
    assert await looked(process) == {"model": "aa"}
    assert process.models.names_by_id("people") == {f"the model in {each}": "model" for each in ("aa", "mm", "zz")}


@pytest.mark.parametrize("lack", ["is not there", "cannot be paid for"])
async def test_a_promoted_version_that_cannot_be_served_leaves_the_name_to_the_one_before_it(tmp_path, lack):
    """Everywhere: also in a process that starts afterwards, and never to one that was not promoted."""
    for folder in ("aa", "mm"):
        put(tmp_path, folder, "model")
    process = Process(tmp_path)
    process.promote("mm")
    await process.look(first=True)
    if lack == "cannot be paid for":
        put(tmp_path, "zz", "model")
        (tmp_path / "zz" / "unaffordable").touch()
    process.promote("zz", "mm")
    late = Process(tmp_path)
    late.promoted = process.promoted
    await late.look(first=True)
    assert await looked(process) == await looked(late) == {"model": "mm"}
    # Said anew, it is tried anew.
    put(tmp_path, "zz", "model")
    (tmp_path / "zz" / "unaffordable").unlink(missing_ok=True)
    process.promote("mm", "zz")
    await looked(process)
    process.promote("zz", "mm")
    assert await looked(process) == {"model": "zz"}


async def test_a_version_of_another_lineage_never_takes_the_name(tmp_path):
    put(tmp_path, "aa", "model")
    put(tmp_path, "zz", "model of others")
    process = Process(tmp_path)
    process.promote("zz")
    await process.look(first=True)
    assert await looked(process) == {"model": "aa"}
    assert process.opened == ["aa"]


async def test_all_is_served_as_it_is_while_the_ledger_does_not_answer(tmp_path):
    for folder in ("aa", "zz"):
        put(tmp_path, folder, "model")
    process = Process(tmp_path)
    process.promote("zz")
    await process.look(first=True)
    process.ledger_answers = False
    process.promote("aa", "zz")
    assert await looked(process) == {"model": "zz"}
    process.ledger_answers = True
    assert await looked(process) == {"model": "aa"}


async def test_bundles_that_are_given_come_first_and_may_have_another_name(tmp_path):
    put(tmp_path, "given", "model")
    put(tmp_path, "watched", "other name")
    models, opened = Models(), Process(tmp_path / "nowhere")
    given = [NamedBundle(tmp_path / "given", "other name")]
    watch = Watch(tmp_path, models, opened._verified, opened._opened, opened._promoted, given)
    assert list(await watch.begin()) == [tmp_path / "given"]
    await watch.look(first=True)
    assert {name: models.named(name).folder.name for name in models.names} == {"other name": "given", "model": "given"}


async def test_a_service_cannot_begin_without_the_last_bundle_that_could_have_a_given_name(tmp_path):
    """A name with several versions has the others still; one with a single bundle has none."""
    for folder in ("aa", "mm", "zz"):
        put(tmp_path, folder, "other" if folder == "zz" else "model")
    (tmp_path / "mm" / "unaffordable").touch()
    process = Process(tmp_path / "nowhere")
    process.promote("mm")
    given = [NamedBundle(tmp_path / each) for each in ("aa", "mm", "zz")]

    def watch() -> Watch:
        return Watch(None, process.models, process._verified, process._opened, process._promoted, given)

    begun = watch()
    assert list(await begun.begin()) == [tmp_path / "zz"]
    await begun.look(first=True)
    assert process.served == {"model": "aa", "other": "zz"}
    for folder in ("aa", "zz"):
        (tmp_path / folder / "unaffordable").touch()
        begun = watch()
        await begun.begin()
        with pytest.raises(CannotServe):
            await begun.look(first=True)
        (tmp_path / folder / "unaffordable").unlink()
