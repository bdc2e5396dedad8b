"""Commands: what Typer makes of options, and the help that follows from them.

Every option and argument is declared with `option` (`dpserve.training.options`): as the default of a parameter of the
command's function, or, where it belongs to others, as a field of a class of options. A command that has a parameter of
such a class takes all its options; several commands that take the same options have a parameter of the same class.

Beside what all front ends show, `option` takes for the command line: panel, the section of the help; complete, what the
shell offers; variable, of the environment; metavar; argument, whether it is a positional argument.
"""

import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandFunctionType

from dpserve.accounting.messages import spelled
from dpserve.interrupts import begin
from dpserve.training.errors import WrongOption
from dpserve.training.options import Options, declared, default_text, is_several, limits, range_text, words_of
from dpserve.wording import as_flag

_VALUE_NAMES = {Path: "PATH", str: "TEXT", int: "NUMBER", float: "NUMBER"}


def _parameter(name: str, kind: Any, field: FieldInfo, options: type[Options] | None = None) -> inspect.Parameter:
    """Return the parameter that Typer makes an option of. kind: the type of its values. options: whose field it is.

    Of a class of options Typer reads words, which the class makes values of: it says what is wrong with them in words
    of its own, and knows what was given.
    """
    required, is_argument = field.is_required(), declared(field, "argument")
    default = None if options is not None and not required else field.get_default()
    text = declared(field, "default_text") or (default_text(field) if options is not None else None)
    shown_default = f" [default: {text}]" if text and text != "none" and not required else ""
    ends = limits(field)
    ends_text = f" [{range_text(field)}]" if ends and options is not None else ""
    more: dict[str, Any] = {
        "help": f"{_sentence(field, options)}{ends_text}{shown_default}",
        "rich_help_panel": _panel(name, field, options),
        "autocompletion": declared(field, "complete") or _completion(field),
        "envvar": declared(field, "variable"),
        "metavar": declared(field, "metavar"),
        "show_default": not (text or required or default is None),
    }
    if options is None:
        more |= {"min": ends.get("at least"), "max": ends.get("at most")}
    if not is_argument:
        more["metavar"] = more["metavar"] or ("TEXT" if declared(field, "form") else _value_name(kind))
    is_flag = field.get_default() is False
    names = declared(field, "names") or ((f"--{name.replace('_', '-')}",) if is_flag else ())
    made: Any = typer.Argument(**more) if is_argument else typer.Option(*names, **more)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else default,
        annotation=Annotated[kind if options is None else _words(field, kind), made],
    )


def _panel(name: str, field: FieldInfo, options: type[Options] | None) -> str | None:
    """Return the section of an option: as it says, or else the class that declares it."""
    panel = declared(field, "panel")
    if panel is None and options is not None:
        panel = next(getattr(base, "panel", None) for base in options.__mro__ if name in inspect.get_annotations(base))
    return panel or None


def _sentence(field: FieldInfo, options: type[Options] | None) -> str:
    """Return what the help says of an option, with how its value is written where it does not say that."""
    sentence, form = str(field.description), declared(field, "form")
    if form and form not in sentence:
        sentence += f" Written {form}."
    if options is not None and is_several(field) and "epeatable" not in sentence:
        sentence += " Repeatable."
    return sentence


def _words(field: FieldInfo, kind: Any) -> Any:
    """Return the type by which Typer reads the words of an option."""
    if bool in _parts(kind):
        return bool | None
    if is_several(field) or any(get_origin(inner) is list for inner in _parts(kind)):
        return list[str] | None
    return Path | None if Path in _parts(kind) else str | None


def _parts(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _completion(field: FieldInfo) -> Callable[[str], list[str]] | None:
    """Return what completes a word of a field whose words are listed."""
    if not (words := words_of(field)):
        return None
    return lambda incomplete: [name for name in words if name.startswith(incomplete)]


def _value_name(kind: Any) -> str | None:
    """Return how the help calls a value of a type: of a `Literal`, all that it may be."""
    kinds = [kind, *get_args(kind), *(each for one in get_args(kind) for each in get_args(one))]
    texts = [each for each in kinds if isinstance(each, str)]
    return "|".join(texts) or next((name for of, name in _VALUE_NAMES.items() if of in kinds), None)


def _parameters(model: type[Options]) -> Iterator[inspect.Parameter]:
    for name, (field, owner) in model.flags().items():
        yield _parameter(name, field.annotation, field, owner)


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
                name: model.of_words({flag: given.pop(flag) for flag in model.flags()})
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


class Command(TyperCommand):
    """A command whose options stand in sections: those without a panel first, then each panel by its title."""

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


class Commands(TyperGroup):
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
            "cls": Commands,
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
