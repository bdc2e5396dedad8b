"""The pictures of README.md and docs/: each is as new as what it is made of, and is shown somewhere."""

import re
from dataclasses import replace

import pytest

from research.pictures import sources
from research.pictures.sources import DIGESTS, FOLDER, PICTURES, ROOT, Picture, keep, kept_digests, stale


def test_no_picture_is_older_than_what_it_is_made_of():
    assert [each.name for each in stale()] == [], "run `make pictures`"


def test_every_picture_in_the_folder_is_made_by_the_command_and_shown():
    assert {each.name for each in FOLDER.glob("*.png")} == {each.name for each in PICTURES}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = {
        name for page in pages for name in re.findall(r"[(\"][\w/]*images/([\w.-]+)[)\"]", page.read_text("utf-8"))
    }
    assert shown == {each.name for each in PICTURES}


def test_a_changed_source_makes_its_pictures_stale_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    monkeypatch.setattr(sources, "FOLDER", tmp_path)
    monkeypatch.setattr(sources, "DIGESTS", tmp_path / "sources.json")
    monkeypatch.setattr(
        sources, "PICTURES", (Picture("a.png", ("*.css", "a.txt"), ("own.css",)), Picture("b.png", ("b.txt",)))
    )
    first, second = sources.PICTURES
    for name in ("a.png", "b.png", "a.txt", "b.txt", "both.css", "own.css"):
        (tmp_path / name).write_text(name)
    assert stale((first, second)) == [first, second]
    keep((first, second))
    assert stale((first, second)) == []
    for name, expected in (("own.css", []), ("both.css", [first]), ("b.txt", [first, second])):
        (tmp_path / name).write_text("changed")
        assert stale((first, second)) == expected
    keep((first, second))
    second.path.unlink()
    assert stale((first, second)) == [second]
    with pytest.raises(FileNotFoundError):
        replace(first, sources=("none.txt",)).digest()


def test_the_command_of_a_picture_is_one_that_the_page_shows():
    from research.pictures.__main__ import ANALYSES

    page = (ROOT / "docs" / "accounting.md").read_text("utf-8")
    assert f"$ dpserve {ANALYSES} " in page
    assert set(kept_digests()) == {each.name for each in PICTURES}
    assert DIGESTS.parent == FOLDER
