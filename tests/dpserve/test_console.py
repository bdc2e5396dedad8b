"""Progress where stderr is no terminal: lines, and few of them."""

from dpserve.commands.console import shares


def test_a_file_has_a_line_of_progress_every_half_minute(capsys):
    times = iter([0.0, 10.0, 31.0, 60.0, 62.0, 200.0])
    with shares("training", clock=lambda: next(times)) as progress:
        for tenths in range(1, 6):
            progress("a stage", tenths / 10)
    said = capsys.readouterr()
    assert said.out == ""
    assert [line.rpartition(", ")[2] for line in said.err.splitlines()] == ["20%", "40%", "50%"]
    assert all("training" in line and "a stage" in line for line in said.err.splitlines())
