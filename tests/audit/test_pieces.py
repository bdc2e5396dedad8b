"""Finished pieces survive; half-written, damaged and foreign files do not count."""

from pathlib import Path

from dpserve.audit.pieces import ResultStore


def test_a_piece_is_computed_once(tmp_path: Path) -> None:
    calls = []

    def compute() -> dict[str, float]:
        calls.append(1)
        return {"accuracy": 0.1 + 0.2}

    piece = {"name": "location-cross-entropy", "seed": 1}
    first = ResultStore(tmp_path / "new").result(piece, compute)
    second = ResultStore(tmp_path / "new").result(piece, compute)
    assert first == second == {"accuracy": 0.1 + 0.2}
    assert len(calls) == 1
    ResultStore(tmp_path / "new").result(piece | {"seed": 2}, compute)
    assert len(calls) == 2


def test_damaged_and_foreign_files_are_computed_again(tmp_path: Path) -> None:
    piece = {"name": "x", "seed": 1}
    store = ResultStore(tmp_path)
    store.result(piece, lambda: {"a": 1})
    (path,) = tmp_path.iterdir()
    for content in (path.read_text()[:-9], "[]", '{"piece": {"name": "x", "seed": 9}, "result": {"a": 7}}', "{}"):
        path.write_text(content)
        assert store.result(piece, lambda: {"a": 2}) == {"a": 2}
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_an_interrupted_piece_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> dict[str, float]:
        raise KeyboardInterrupt

    store = ResultStore(tmp_path)
    try:
        store.result({"name": "x"}, interrupted)
    except KeyboardInterrupt:
        assert list(tmp_path.iterdir()) == []
    else:
        raise AssertionError
