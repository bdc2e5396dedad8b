"""What the service is told: by flags, else by the environment, else by one TOML file, else by defaults.

`dpserve.settings.ServeSettings` lists the settings; there is no second list of them. An option `--largest-batch` is
DPSERVE_LARGEST_BATCH in the environment and `largest-batch` under `[serve]` in the file. The ledger stands above that
table, for every command uses it. A key that nobody knows is refused: a misspelt budget must not pass for none.
"""

import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from platformdirs import user_config_path
from pydantic import BaseModel, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from service.urls import without_secrets

PREFIX = "DPSERVE_"
FILE_VARIABLE = "DPSERVE_CONFIG"
SHARED = ("ledger",)
"""The keys above the tables: every command uses them."""
TABLE = "serve"
FILES_OR_URLS = frozenset({"ledger", "jwt_keys"})
"""Parameters that are texts and may name a file."""
BUDGET_WORDS = frozenset({"epsilon", "rho", "mu", "posterior_belief", "advantage"})
"""One of these says a budget; said in one place, it replaces whatever another word says further down."""
_LIKE = 0.79
"""How like a known name, to `difflib`, a misspelt one is at least; `SERVICE` is 0.77 like `DEVICE`, and no slip."""
_SERVICE_LINK = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT_[0-9]+_(TCP|UDP|SCTP)(_|$)")
_SERVICE_LINK_VALUE = ("tcp://", "udp://", "sctp://")
"""What Kubernetes sets in a pod for every Service beside it, for one called dpserve-api under our prefix."""


class ConfigurationError(ValueError):
    """A setting cannot be used. The text says which, where it stands, and what to write instead."""


@dataclass(frozen=True)
class Setting:
    """A value and where it was found: `environment DPSERVE_PORT`, or the path of the file."""

    value: object
    source: str


def file_path() -> Path:
    """Return the one file that is read: as DPSERVE_CONFIG or --config says, or the user's own, which may not exist.

    A file in the current folder is not picked up unless it is named: whoever can write there could set a budget.
    """
    if os.environ.get(FILE_VARIABLE):
        return Path(os.environ[FILE_VARIABLE])
    if "DPSERVE_HOME" in os.environ:
        return Path(os.environ["DPSERVE_HOME"]) / "dpserve.toml"
    return user_config_path("dpserve") / "dpserve.toml"


def choose_file(path: Path) -> None:
    """Read this file, in this process and in those that it starts."""
    os.environ[FILE_VARIABLE] = str(path.absolute())


def is_read(name: str, model: type[BaseModel]) -> bool:
    """Whether a variable of the environment is one of a model's settings, or means something to every command."""
    return name in _OTHER_VARIABLES | {variable(each) for each in model.model_fields}


def environment_without_settings() -> dict[str, str]:
    """Return the environment for a service that must be told everything by flags, as the one of a demonstration."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}


def settings(model: type[BaseModel]) -> dict[str, Setting]:
    """Return what the environment and the file say of a model's settings, each with its source.

    Raises ConfigurationError for an unknown key, a value of the wrong type, or a named file that cannot be read.
    """
    path = file_path()
    every = _reader(model)
    in_file = _in_file(path, every)
    refuse_misspelt_variables(lambda: model)
    reader = type("Reader", (every,), {"in_file": in_file})
    try:
        found = reader()
        environment = _Environment(every)()
    except ValidationError as error:
        raise ConfigurationError("\n".join(_said(each, in_file, path) for each in error.errors())) from None
    values = {name: getattr(found, name) for name in every.model_fields if name in found.model_fields_set}
    return _of_one_budget(
        {
            name: Setting(value, f"environment {variable(name)}" if name in environment else str(path))
            for name, value in values.items()
            if value is not None
        }
    )


def shared_setting(name: str) -> str | None:
    """Return a key above the tables of the file, or None. The environment's word for it is the option's own."""
    path = file_path()
    content = _content(path)
    _refuse_unknown(content, {*SHARED, TABLE}, path, "")
    value = content.get(name)
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f'{path}: {name} must be a text, as {name} = "..."')
    return None if value is None else _located(value, path)


def without_other_budgets(found: Mapping[str, Setting], said: Collection[str]) -> dict[str, Setting]:
    """Return the settings less every word of a budget, where a flag said one already."""
    drop = BUDGET_WORDS if BUDGET_WORDS & set(said) else frozenset[str]()
    return {name: setting for name, setting in found.items() if name not in drop}


def variable(name: str) -> str:
    """Return a parameter's variable in the environment."""
    return PREFIX + name.upper()


def key(name: str) -> str:
    """Return a parameter's key in the file: its flag without the dashes in front."""
    return name.replace("_", "-")


def shown(name: str, value: object) -> object:
    """Return a value as it may be shown: keys and passwords are hidden, also inside a URL."""
    if isinstance(value, str) and re.search(r"(^|_)(key|secret|token|password)$", name):
        return "(hidden)"
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, list | tuple):
        return [shown(name, each) for each in value]
    return str(value) if isinstance(value, Path) else value


class _Environment(EnvSettingsSource):
    """DPSERVE_ variables; a list is written with commas."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        del field_name, field
        try:
            return json.loads(value)
        except ValueError:
            return [each.strip() for each in str(value).split(",")]


class _Settings(BaseSettings):
    """What every model of settings shares: its sources and their order."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", protected_namespaces=(), validate_default=False
    )
    in_file: ClassVar[dict[str, object]] = {}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the environment, then the file; flags come later, from the command line itself."""
        del init_settings, env_settings, dotenv_settings, file_secret_settings
        return _Environment(settings_cls), InitSettingsSource(settings_cls, init_kwargs=cls.in_file)


@cache
def _reader(settings: type[BaseModel]) -> type[_Settings]:
    """Return the model that reads what the environment and the file say of some of the settings."""
    hints = get_type_hints(settings)
    fields: dict[str, Any] = {name: (hints[name] | None, None) for name in settings.model_fields}
    return create_model("Settings", __base__=_Settings, **fields)


def _in_file(path: Path, model: type[_Settings]) -> dict[str, object]:
    """Return the file's values by parameter, with relative paths as seen from the file."""
    content = _content(path)
    names = {key(name): name for name in model.model_fields}
    _refuse_unknown(content, {*SHARED, TABLE}, path, "")
    table = content.get(TABLE, {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"{path}: [{TABLE}] must be a table")
    _refuse_unknown(table, names.keys() - set(SHARED), path, f" in [{TABLE}]")
    values = {names[each]: value for each, value in table.items()}
    values |= {name: content[name] for name in SHARED if name in content}
    paths = {name for name, field in model.model_fields.items() if _is_path(field)}
    return {
        name: _located(value, path) if isinstance(value, str) and name in paths | FILES_OR_URLS else value
        for name, value in values.items()
    }


def _is_path(field: FieldInfo) -> bool:
    return "Path" in str(field.annotation)


def _located(value: str, path: Path) -> str:
    """Return a path as seen from the file: from another folder it would name another ledger, with nothing spent."""
    return value if ":" in value or not value else str(path.resolve().parent / Path(value).expanduser())


def _content(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if os.environ.get(FILE_VARIABLE):
            raise ConfigurationError(f"there is no file {path}: look at --config and {FILE_VARIABLE}") from None
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from None


def _refuse_unknown(table: Mapping[str, object], known: Collection[str], path: Path, where: str) -> None:
    for each in table:
        if each not in known:
            close = get_close_matches(each.replace("_", "-"), known, 1)
            advice = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(known))}"
            raise ConfigurationError(f"{path}: nothing is called {each!r}{where}; {advice}")


def refuse_misspelt_variables(settings: Callable[[], type[BaseModel]]) -> None:
    """Raise ConfigurationError for a variable of the environment that is nearly the name of one that is read.

    A ledger that is misspelt must not pass for the default one. settings: returns those that are variables; not
    asked where every variable is known without them.
    """
    named = [each for each in os.environ if each.startswith(PREFIX) and each not in _OTHER_VARIABLES]
    if not named:
        return
    known = _OTHER_VARIABLES | {variable(name) for name in settings().model_fields}
    for each in named:
        if each in known or _SERVICE_LINK.search(each) or os.environ[each].startswith(_SERVICE_LINK_VALUE):
            continue
        meant = _meant(each.removeprefix(PREFIX), sorted(name.removeprefix(PREFIX) for name in known))
        if meant is not None:
            raise ConfigurationError(f"nothing reads the environment's {each}; did you mean {PREFIX}{meant}?")


def _meant(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that this one is a slip of, or None for a name of something else.

    A slip is very like the name, or has its letters in another order. What begins as a ledger's variable is meant for
    it: nothing else has a ledger.
    """
    same_letters = [each for each in known if sorted(each) == sorted(name)]
    close = same_letters or get_close_matches(name, known, 1, _LIKE)
    return close[0] if close else "LEDGER" if name.startswith("LEDGER_") else None


_OTHER_VARIABLES = {
    FILE_VARIABLE,
    "DPSERVE_HOME",
    "DPSERVE_LEDGER",
    "DPSERVE_LEDGER_REPLICAS",
    "DPSERVE_DATA_DIR",
    "DPSERVE_ADMIN_KEY",
    "DPSERVE_METRICS_KEY",
    "DPSERVE_KEY_IN",
    "DPSERVE_KEY_OUT",
}


def _said(error: Mapping[str, Any], in_file: Mapping[str, object], path: Path) -> str:
    name = str(error["loc"][0])
    if os.environ.get(variable(name)):
        text = f"the environment's {variable(name)}: {error['msg']}"
        if os.environ[variable(name)].startswith("tcp://"):
            text += "; Kubernetes set it for a Service called dpserve: say enableServiceLinks: false"
        return text
    return f"{path}: {key(name)} = {shown(name, in_file.get(name))!r}: {error['msg']}"


def _of_one_budget(found: dict[str, Setting]) -> dict[str, Setting]:
    said = {name for name, setting in found.items() if setting.source.startswith("environment ")}
    kept = without_other_budgets({name: each for name, each in found.items() if name not in said}, said)
    return {name: setting for name, setting in found.items() if name in said or name in kept}
