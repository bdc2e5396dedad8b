"""Declarations of commands: the options, each once, and the help that follows from them.

Every option and argument is declared with `option`: as the default of a parameter of the command's function, or, where
it belongs to others, as a field of a class of options, a pydantic model. A command that has a parameter of such a class
takes all its options; several commands that take the same options have a parameter of the same class.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args, get_type_hints

import typer
from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandFunctionType

from dpserve.accounting.messages import spelled
from dpserve.interrupts import begin
from dpserve.training.errors import WrongOption
from dpserve.wording import as_flag


class Options(BaseModel):
    """Options that belong together."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
    other_sources: ClassVar[bool] = False
    """Whether an option that is not given may have a value elsewhere, and so no default on the command line."""

    @classmethod
    def of_command_line(cls, given: Mapping[str, Any]) -> Self:
        """Return the options from what the command line has for each of them."""
        return cls(**given)


_VALUE_NAMES = {Path: "PATH", str: "TEXT", int: "NUMBER", float: "NUMBER"}


def option(
    default: Any,
    help: str,  # noqa: A002 - as Typer calls it
    *names: str,
    panel: str | None = None,
    default_text: str | None = None,
    ge: float | None = None,
    le: float | None = None,
    complete: Callable[..., list[str]] | None = None,
    variable: str | None = None,
    metavar: str | None = None,
    argument: bool = False,
    words: Any = None,
) -> Any:
    """Declare an option: its default, its help and its bounds.

    names: flags, if not the field's own name. panel: the section of the help. default_text: what the help says of a
    default that is not a value. complete: what the shell offers. variable: of the environment. argument: whether it is
    a positional argument. words: `str` or `list[str]` where the command line gives a person's words, whatever the
    field's own type is.
    """
    shown: dict[str, Any] = {
        "names": names,
        "text": default_text,
        "argument": argument,
        "words": words,
        "typer": {
            "min": ge,
            "max": le,
            "rich_help_panel": panel,
            "autocompletion": complete,
            "envvar": variable,
            "metavar": metavar,
        },
    }
    return Field(default, description=help, ge=ge, le=le, json_schema_extra=shown)


def _parameter(name: str, kind: Any, field: FieldInfo, *, other_sources: bool = False) -> inspect.Parameter:
    """Return the parameter that Typer makes an option of. kind: the type of its values."""
    shown: Any = field.json_schema_extra
    kind = kind if shown["words"] is None else shown["words"] | None
    default = None if other_sources else field.get_default()
    required = field.is_required()
    text = shown["text"] or (default_text(field.get_default()) if other_sources else None)
    help_text = f"{field.description} [default: {text}]" if text else field.description
    more = shown["typer"] | {"help": help_text, "show_default": not (text or required or default is None)}
    if not shown["argument"]:
        more["metavar"] = more["metavar"] or _value_name(kind)
    names = shown["names"] or ((f"--{name.replace('_', '-')}",) if field.get_default() is False else ())
    made: Any = typer.Argument(**more) if shown["argument"] else typer.Option(*names, **more)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else default,
        annotation=Annotated[kind | None if other_sources else kind, made],
    )


def _value_name(kind: Any) -> str | None:
    """Return how the help calls a value of a type: of a `Literal`, all that it may be."""
    kinds = [kind, *get_args(kind), *(each for one in get_args(kind) for each in get_args(one))]
    texts = [each for each in kinds if isinstance(each, str)]
    return "|".join(texts) or next((name for of, name in _VALUE_NAMES.items() if of in kinds), None)


def _parameters(model: type[Options]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(model)
    for name, field in model.model_fields.items():
        yield _parameter(name, hints[name], field, other_sources=model.other_sources)


def default_text(default: object) -> str | None:
    """Return a default as the help and the documentation show it; None for none."""
    if isinstance(default, bool):
        return "on" if default else None
    return None if default is None or default == [] else str(default)


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function as Typer takes it: every option by itself, in place of the class that holds it."""
    shown: list[inspect.Parameter] = []
    classes: dict[str, type[Options]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, Options):
            classes[name] = kind
            shown += _parameters(kind)
        elif isinstance(parameter.default, FieldInfo):
            shown.append(_parameter(name, kind, parameter.default))
        else:
            shown.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def command(**given: Any) -> None:
        try:
            made = {
                name: model.of_command_line({each: given.pop(each) for each in model.model_fields})
                for name, model in classes.items()
            }
            begin()
            function(**given, **made)
        except WrongOption as wrong:
            raise typer.BadParameter(spelled(wrong.explanation, as_flag), param_hint=as_flag(wrong.field)) from wrong

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in shown}
    return command


_BUDGET_IN_PARTS = ("--epsilon", "--delta", "--rho")


class Command(TyperCommand):
    """A command whose options stand in sections: those without a panel first, then each panel by its title."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the arguments. A budget that is written as other commands take it is refused with how this one does."""
        known = {flag for parameter in self.params for flag in parameter.opts}
        given = {each.partition("=")[0] for each in args} - known
        if "--budget" in given and "--epsilon" in known:
            ctx.fail(f"{ctx.info_name} has no --budget: give the budget as --epsilon E --delta D, or --rho R")
        if "--budget" in known and (parts := [each for each in _BUDGET_IN_PARTS if each in given]):
            ctx.fail(f"{ctx.info_name} has no {parts[0]}: give the budget as --budget epsilon:E@DELTA, or rho:R")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options without a panel, and the panels in the order of their first options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                if parameter.param_type_name == "argument":
                    title, record = "Arguments", (f"{parameter.name}{'...' if parameter.nargs < 0 else ''}", record[1])
                else:
                    title = getattr(parameter, "rich_help_panel", None) or "Options"
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class _Commands(TyperGroup):
    """A group whose help says what each command does in one whole sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the first sentence of each command's help."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(1000)) for name, one in commands.items() if one])


class Group(typer.Typer):
    """A group of commands with this help, whose options are declared with `option`."""

    def __init__(self, help: str | None = None, **more: Any) -> None:  # noqa: A002 - as Typer calls it
        """Take what `typer.Typer` takes. help: one line on what the commands are for; None for a command by itself."""
        shown: dict[str, Any] = {
            "no_args_is_help": True,
            "rich_markup_mode": None,
            "pretty_exceptions_enable": False,
            "add_completion": False,
            "cls": _Commands,
        }
        super().__init__(**(shown if help is None else shown | {"help": help}) | more)
        if help is not None:
            self.callback()(lambda: None)  # a group of one command is a group, too

    def command(  # type: ignore[override]
        self, name: str | None = None, *, cls: type[TyperCommand] = Command, **more: Any
    ) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """Add a command, shown as `Command` shows it. more: as `typer.Typer.command` takes it."""
        add = super().command(name, cls=cls, **more)

        def added(function: CommandFunctionType) -> CommandFunctionType:
            add(with_options(function))
            return function

        return added
