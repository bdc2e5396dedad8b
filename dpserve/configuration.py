"""The configuration's file and the environment's variables: which are read, and which must be slips.

`dpserve.settings.ServeSettings` declares the settings. The file has them under `[serve]`, except for the ledger and how
many of its replicas a write waits for, which stand above that table, because every command uses them. Unknown keys and
misspelt variables are refused: a misspelt budget must not pass for none.
"""

import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from dpserve.service.urls import without_secrets
from dpserve.training.fields import NAME

PREFIX = "DPSERVE_"
FILE_VARIABLE = "DPSERVE_CONFIG"
ABOVE_THE_TABLE = ("ledger", "ledger-replicas")
TABLE = "serve"
_LIKE = 0.79
"""The least similarity, by `difflib`, of a misspelt name to the one that was meant: `SERVICE` has 0.77 to `DEVICE`."""
_SERVICE_LINK = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT_[0-9]+_(TCP|UDP|SCTP)(_|$)")
_SERVICE_LINK_VALUE = ("tcp://", "udp://", "sctp://")
"""Kubernetes sets such values in pods for every Service of a namespace, for one called dpserve-api under our prefix."""
OTHER_VARIABLES = {
    FILE_VARIABLE,
    "DPSERVE_BY",
    "DPSERVE_HOME",
    "DPSERVE_LEDGER",
    "DPSERVE_LEDGER_REPLICAS",
    "DPSERVE_DATA_DIR",
    "DPSERVE_ADMIN_KEY",
    "DPSERVE_METRICS_KEY",
    "DPSERVE_KEY_IN",
    "DPSERVE_KEY_OUT",
}
"""Those that no setting of `serve` has."""


class ConfigurationError(ValueError):
    """A setting cannot be used. The text says which, where it stands, and what to write instead."""


def file_path() -> Path:
    """Return the one file that is read: as DPSERVE_CONFIG or --config says, or the user's own, which may not exist.

    A file in the current folder is not picked up unless it is named: anyone who can write there could set a budget.
    """
    if os.environ.get(FILE_VARIABLE):
        return Path(os.environ[FILE_VARIABLE])
    if "DPSERVE_HOME" in os.environ:
        return Path(os.environ["DPSERVE_HOME"]) / "dpserve.toml"
    return user_config_path("dpserve") / "dpserve.toml"


def choose_file(path: Path) -> None:
    """Read this file, in this process and in those that it starts."""
    os.environ[FILE_VARIABLE] = str(path.absolute())


def in_file(settings: Collection[str], files: Collection[str]) -> dict[str, Any]:
    """Return the file's values by setting. files: the settings that are paths, read as relative to the file.

    Raises ConfigurationError for an unknown key, and for a named file that cannot be read.
    """
    path = file_path()
    content = _content(path)
    table = content.get(TABLE, {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"{path}: [{TABLE}] must be a table")
    names = {key(name): name for name in settings}
    for name in ABOVE_THE_TABLE:
        if name in table:
            raise ConfigurationError(f"{path}: nothing is called {name!r} in [{TABLE}]; it stands above that table")
    _refuse_unknown(table, names.keys() - set(ABOVE_THE_TABLE), path, f" in [{TABLE}]")
    values = {names[name]: value for name, value in table.items()}
    values |= {names[name]: content[name] for name in ABOVE_THE_TABLE if name in content}
    return {name: _located_each(value, path) if name in files else value for name, value in values.items()}


def stated_ledger() -> str | None:
    """Return the ledger as the environment or else the file says, or None."""
    if (variable := in_environment("ledger")) is not None:
        return variable
    path = file_path()
    value = _content(path).get("ledger")
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f'{path}: ledger must be a text, as ledger = "..."')
    return None if value is None else _located(value, path)


def stated_replicas() -> int:
    """Return how many replicas of the ledger's store a write waits for, as the environment or else the file says."""
    where: object = f"the environment's {variable('ledger_replicas')}"
    stated_value: object = in_environment("ledger_replicas")
    if isinstance(stated_value, str):
        stated_value = int(stated_value) if re.fullmatch(r"[0-9]{1,9}", stated_value) else stated_value
    else:
        where = f"{file_path()}: ledger-replicas"
        stated_value = _content(file_path()).get("ledger-replicas", 0)
    if not isinstance(stated_value, int) or isinstance(stated_value, bool) or stated_value < 0:
        raise ConfigurationError(f"{where} must be a whole number from 0, not {stated_value!r}")
    return stated_value


def variable(name: str) -> str:
    """Return a setting's variable in the environment."""
    return PREFIX + name.upper()


def in_environment(name: str) -> str | None:
    """Return the value of a setting's variable, or None where it is empty or not there."""
    return os.environ.get(variable(name)) or None


def key(name: str) -> str:
    """Return a setting's key in the file: its flag without the dashes in front."""
    return name.replace("_", "-")


def variables_read(settings: Iterable[str]) -> set[str]:
    """Return the variables of the environment that are settings, or that other commands read."""
    return OTHER_VARIABLES | {variable(name) for name in settings}


def environment_without_settings() -> dict[str, str]:
    """Return the environment for a service whose settings are all flags, as the one of a demonstration."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}


def redact(value: object) -> object:
    """Return a value as it may be shown: what a URL says of users and passwords is hidden."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, list | tuple):
        return [redact(element) for element in value]
    return str(value) if isinstance(value, Path) else value


def refuse_misspelt_variables(settings: Iterable[str]) -> None:
    """Raise ConfigurationError for a variable of the environment that is nearly the name of one that is read.

    A ledger that is misspelt must not pass for the default one.
    """
    variables = variables_read(settings)
    for given in os.environ:
        if not given.startswith(PREFIX) or given in variables or _SERVICE_LINK.search(given):
            continue
        if os.environ[given].startswith(_SERVICE_LINK_VALUE):
            continue
        closest = _closest(given.removeprefix(PREFIX), sorted(name.removeprefix(PREFIX) for name in variables))
        if closest is not None:
            raise ConfigurationError(f"nothing reads the environment's {given}; did you mean {PREFIX}{closest}?")


def _closest(name: str, names: Sequence[str]) -> str | None:
    """Return the known name that this one is a slip of, or None for a name of something else.

    A slip is very like the name, or has its letters in another order. What begins as a ledger's variable is meant for
    it: nothing else has a ledger.
    """
    same_letters = [other for other in names if sorted(other) == sorted(name)]
    close = same_letters or get_close_matches(name, names, 1, _LIKE)
    return close[0] if close else "LEDGER" if name.startswith("LEDGER_") else None


def _content(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if os.environ.get(FILE_VARIABLE):
            raise ConfigurationError(f"there is no file {path}: look at --config and {FILE_VARIABLE}") from None
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from None
    _refuse_unknown(content, {*ABOVE_THE_TABLE, TABLE}, path, "")
    return content


def _located_each(value: object, path: Path) -> object:
    if isinstance(value, list):
        return [_located_each(element, path) for element in value]
    return _located(value, path) if isinstance(value, str) else value


def _located(value: str, path: Path) -> str:
    """Return a path as seen from the file: from another folder it would name another ledger, with nothing spent."""
    if ":" in value or not value:
        return value
    seen = path.resolve().parent / Path(value).expanduser()
    name, of_bundle = split_name(value)
    return str(seen) if seen.exists() or name is None else f"{name}={_located(of_bundle, path)}"


def split_name(text: str) -> tuple[str | None, str]:
    """Return the name that a bundle's model is to be asked by, as in loans=models/loans-2026-11, and the path.

    None where there is none.
    """
    name, equals, path = text.partition("=")
    return (name, path) if equals and path and NAME.fullmatch(name) else (None, text)


def _refuse_unknown(table: Mapping[str, object], names: Collection[str], path: Path, where: str) -> None:
    for key in table:
        if key not in names:
            close = get_close_matches(key.replace("_", "-"), names, 1)
            advice = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(names))}"
            raise ConfigurationError(f"{path}: nothing is called {key!r}{where}; {advice}")
