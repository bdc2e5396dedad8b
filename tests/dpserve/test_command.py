"""Options that stand in classes: what Typer makes of them, and what a command gets."""

import pytest
import typer
from typer.testing import CliRunner

from dpserve.commands.command import Group
from dpserve.training.options import Options, option


class Cake(Options):
    flour: int = option(..., "Grams of it.", ge=1, le=500)
    sugar: float = option(0.5, "Cups of it.")
    glaze: bool = option(False, "Whether it shines.")
    layers: list[int] | None = option(None, "How many; repeatable.", "--layer", default_text="one", panel="Tall cakes")


class Oven(Options):
    heat: int | None = option(None, "Degrees.", variable="OVEN_HEAT")


@pytest.fixture
def bake():
    app = Group(no_args_is_help=False)
    baked = []

    @app.command()
    def command(cake: Cake, oven: Oven, name: str = "cake") -> None:
        """Bake."""
        baked.append((cake, oven, name))

    def run(*arguments, **environment):
        done = CliRunner(env={"COLUMNS": "120"} | environment).invoke(app, arguments)
        return done, baked[-1] if baked else None

    return run


def test_a_command_gets_the_classes_it_asks_for(bake):
    _, found = bake("--flour", "200", "--glaze", "--layer", "1", "--layer", "2", "--name", "x", OVEN_HEAT="180")
    assert found == (Cake(flour=200, glaze=True, layers=[1, 2]), Oven(heat=180), "x")
    _, found = bake("--flour", "200")
    assert (found[0].sugar, found[0].glaze, found[1].heat) == (0.5, False, None)


def test_what_is_out_of_bounds_or_missing_is_wrong_usage(bake):
    for arguments in (("--flour", "501"), ("--flour", "0"), (), ("--flour", "many")):
        done, found = bake(*arguments)
        assert (done.exit_code, found) == (2, None)
        assert "--flour" in done.stderr


def test_the_help_has_defaults_bounds_and_sections(bake):
    lines = bake("--help")[0].stdout.splitlines()
    options, tall = lines[: lines.index("Tall cakes:")], lines[lines.index("Tall cakes:") :]
    assert any("--flour" in line and "[at least 1 and at most 500]" in line and "required" in line for line in options)
    assert any("--sugar" in line and "[default: 0.5]" in line for line in options)
    assert any("--layer" in line and "[default: one]" in line for line in tall)


def test_an_option_of_two_classes_is_refused():
    class Other(Options):
        flour: int = option(1, "Again.")

    app = Group()
    with pytest.raises(ValueError, match="duplicate parameter name"):

        @app.command()
        def command(cake: Cake, other: Other) -> None:
            """Bake."""

    assert isinstance(app, typer.Typer)
