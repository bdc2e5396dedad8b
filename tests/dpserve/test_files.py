"""Files that commands write: whole or not at all, and named where they cannot be written."""

import errno

import pytest

from dpserve.commands.console import picture
from dpserve.commands.files import whole_file
from dpserve.service.admin.keys import admin_key
from dpserve.training.bundles.sealing import write_folder
from dpserve.training.errors import BundleError
from tests.full_disk import limited_to


def test_a_file_appears_when_what_is_done_meanwhile_has_succeeded(tmp_path):
    target = tmp_path / "x.json"
    with whole_file(target, room=100) as draft:
        draft.write(b"{}")
        assert not target.exists()
    assert target.read_bytes() == b"{}"
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "y.json", b"content"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_that_is_there_stays_as_it_is(tmp_path):
    (tmp_path / "x").write_text("before")
    with pytest.raises(FileExistsError) as refused, whole_file(tmp_path / "x", b"after"):
        pytest.fail("what is done meanwhile may cost something")
    assert refused.value.filename == str(tmp_path / "x")
    assert (tmp_path / "x").read_text() == "before"


@pytest.mark.parametrize("room", [0, 10_000])
def test_a_full_disk_is_found_before_what_is_done_meanwhile_and_names_the_file(tmp_path, room):
    content = b"" if room else b"x" * 10_000
    with limited_to(4096), pytest.raises(OSError) as refused, whole_file(tmp_path / "x", content, room=room):  # noqa: PT011
        pytest.fail("what is done meanwhile may cost something")
    assert (refused.value.errno, refused.value.filename) == (errno.EFBIG, str(tmp_path / "x"))
    assert list(tmp_path.iterdir()) == []


def test_more_than_there_was_room_for_names_the_file(tmp_path):
    with limited_to(4096), pytest.raises(OSError) as refused, whole_file(tmp_path / "x", room=100) as draft:  # noqa: PT011
        draft.write(b"x" * 10_000)
    assert refused.value.filename == str(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_that_does_not_fit_leaves_nothing(tmp_path):
    with limited_to(4096), pytest.raises(BundleError, match="model"):
        write_folder(tmp_path / "model", {"small": b"x", "large": b"x" * 10_000})
    assert list(tmp_path.iterdir()) == []


def draw(folder):
    with picture(folder / "x.png", 1, 1) as figure:
        figure.add_subplot()


@pytest.mark.parametrize("write", [admin_key, draw], ids=["the admin key", "a plot"])
def test_a_full_disk_is_named_and_nothing_is_left(tmp_path, write):
    with limited_to(10), pytest.raises(OSError) as refused:  # noqa: PT011
        write(tmp_path)
    assert refused.value.errno == errno.EFBIG
    assert refused.value.filename.startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    write(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
