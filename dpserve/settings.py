"""The settings of `dpserve serve`, each declared once: flags, variables, keys of the file and documentation follow.

A setting `largest_batch` is the flag `--largest-batch`, DPSERVE_LARGEST_BATCH in the environment and `largest-batch`
under `[serve]` in the file. The first of them that sets it wins.
"""

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from dpserve import configuration
from dpserve.accounting.messages import spelled
from dpserve.commands import options
from dpserve.mechanisms.mechanism import Law
from dpserve.mechanisms.registry import DEFAULT, all_mechanisms
from dpserve.service.errors import CannotServe
from dpserve.service.telemetry.logs import Format
from dpserve.service.tls import Tls
from dpserve.training.bundles.certificate import ModelCertificate
from dpserve.training.errors import WrongOption
from dpserve.training.options import declared, default_text, option, range_text
from dpserve.wording import as_flag

_SLASHES_OF_AN_ORIGIN = 2
_NOT_GIVEN: tuple[object, ...] = (None, [], ())
"""The command line's values for an option, or for an argument of any number of values, that is not given."""

_batches = partial(option, panel="Requests and batches")
_owner = partial(option, panel="The owner's port")
_front = partial(option, panel="HTTPS, rates, origins and logs")
_tokens = partial(option, panel="Tokens in addition to API keys")
_STORE = "The ledger's store"


@dataclass(frozen=True)
class NamedBundle:
    """A bundle's folder, and the name that its model is asked by; None for the certificate's."""

    folder: Path
    name: str | None = None

    def name_of(self, certificate: ModelCertificate) -> str:
        """Return the name that the bundle's model, which has this certificate, is asked by."""
        return certificate.name if self.name is None else self.name


class _Environment(EnvSettingsSource):
    """DPSERVE_ variables, less a budget that is stated by a flag."""

    def __call__(self) -> dict[str, Any]:
        return options.without_other_budgets(super().__call__(), self.current_state)


class _File(InitSettingsSource):
    """The file, less a budget that is stated by a flag or a variable."""

    def __call__(self) -> dict[str, Any]:
        return options.without_other_budgets(super().__call__(), self.current_state)


def _names_of_mechanisms() -> str:
    proven, unproven = (
        [name for name, mechanism in all_mechanisms().items() if mechanism.status == status]
        for status in ("proven", "unproven")
    )
    return f"{', '.join(proven)}; or {', '.join(unproven)}, unproven"


def _forms_of_prices() -> str:
    return ". ".join(f"{name}: {', '.join(mechanism.prices.forms)}" for name, mechanism in all_mechanisms().items())


class ServeSettings(BaseSettings, options.AccountBudget):
    """The settings of `dpserve serve`. `checked` checks those that depend on each other."""

    model_config = SettingsConfigDict(env_prefix=configuration.PREFIX, env_ignore_empty=True)

    bundle: Annotated[list[Path], NoDecode] = option(
        [],
        "The bundles' folders, each a model to serve; NAME=BUNDLE serves it under another name than its own.",
        argument=True,
        complete=options.bundle_names,
    )
    default: str | None = option(
        None, "The model that is asked where a path names none.", default_text="the only one that is served"
    )
    price: str | None = option(
        None,
        f"The price of one row. {_forms_of_prices()}. An epsilon without D is pure.",
        default_text="rho = 0.00125, or epsilon 0.05 in a lineage that counts pure epsilon",
    )
    mechanism: str | None = option(
        None,
        f"How answers are made private: {_names_of_mechanisms()}.",
        default_text=DEFAULT,
        complete=options.mechanism_names,
    )
    selection: Law | None = options.SELECTION()
    ledger: str | None = option(None, options.LEDGER, default_text=options.LEDGER_DEFAULT)
    host: str = option("127.0.0.1", "The address to listen on.")
    port: int = option(8000, "The port to listen on; 0 picks a free one.", ge=0, le=65535)
    grpc_port: int | None = option(
        None,
        "A further port, for the Open Inference Protocol over gRPC; 0 picks a free one.",
        default_text="no such port",
        ge=0,
        le=65535,
    )
    workers: int = option(1, "How many processes answer at the port, on one ledger.", ge=1, le=64)
    accept_unproven: bool = option(False, "Needed for a mechanism whose guarantee is claimed, not proven.")
    device: str | None = option(
        None, "Where the model's encoder computes, or its exact products: cpu or cuda.", default_text="cpu"
    )

    largest_batch: int = _batches(1000, "The most rows of one request; fewer where they take 16 MiB.", ge=1, le=10_000)
    max_batch_size: int | None = _batches(
        None,
        "The most rows of several requests that are computed and charged together.",
        default_text="1000; 64 where a deep network computes the features",
        ge=1,
    )
    max_batch_time: float = _batches(
        0.0, "Seconds that a batch waits for more requests; 0 takes what waits when the batch before ends.", ge=0, le=1
    )

    admin: bool = _owner(True, "Whether there is an owner's port.", "--admin/--no-admin")
    admin_host: str = _owner("127.0.0.1", "The address that the owner's port listens on.")
    admin_port: int | None = _owner(
        None,
        "The owner's port; 0 picks a free one.",
        default_text="the one after --port, if it is free",
        ge=0,
        le=65535,
    )

    tls_cert: Path | None = _front(None, "PEM file with the certificate to serve HTTPS with, and its chain.")
    tls_key: Path | None = _front(None, "PEM file with the certificate's key.")
    cors_origin: str | None = _front(
        None, "Web origins whose pages may ask, as https://app.example, separated by commas.", default_text="none"
    )
    failed_tries: int = _front(
        300, "The most invalid credentials that one address may send in a minute; 0 for any number.", ge=0
    )
    trusted_proxies: str | None = _front(
        None,
        "Addresses or networks of proxies whose X-Forwarded-For is trusted, as 10.0.0.0/8, separated by commas.",
        default_text="none",
    )
    log_format: Format = _front("text", "text, or json: one object a line, each request with its id.")

    jwt_issuer: str | None = _tokens(None, "Take tokens (JWT) of this issuer in addition to API keys.")
    jwt_audience: str | None = _tokens(None, "The audience that a token must have.")
    jwt_keys: str | None = _tokens(None, "The issuer's JSON Web Key Set: an https:// URL, or a file.")
    jwt_claim: str = _tokens("sub", "The claim that names the client.")
    jwt_scope_claim: str | None = _tokens(
        None, "The claim that lists what a token may do: predict, budget-read.", default_text="both"
    )
    jwt_algorithm: str = _tokens("RS256,ES256", "The signature algorithms to allow, separated by commas.")

    ledger_replicas: int | None = options.REPLICAS(panel=_STORE)
    rehearsal: bool = option(False, "Accept a store that may lose charges. Not for private records.", panel=_STORE)

    @field_validator("bundle", mode="before")
    @classmethod
    def _bundles(cls, value: object) -> object:
        """Take one path as text, as the environment and most files have it; several are a list in JSON or TOML."""
        if not isinstance(value, str):
            return value
        return json.loads(value) if value.startswith("[") else [value]

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read flags, then the environment, then the file."""
        del env_settings, dotenv_settings, file_secret_settings
        return init_settings, _Environment(settings_cls), _File(settings_cls, in_file())

    @classmethod
    def of_words(cls, given: Mapping[str, Any]) -> Self:
        """Return the settings of these flags; None for what was not given. Raises ConfigurationError."""
        configuration.refuse_misspelt_variables(cls.model_fields)
        flags = {name: value for name, value in given.items() if value not in _NOT_GIVEN}
        try:
            return cls(**flags)
        except WrongOption as error:
            raise configuration.ConfigurationError(_refusal(error, flags)) from error

    def sources(self, flags: Mapping[str, Any]) -> dict[str, str]:
        """Return where the value of each setting comes from: `flag`, `environment NAME`, the file's path, `default`."""
        environment = EnvSettingsSource(type(self))()
        origins = dict.fromkeys(type(self).model_fields, "default")
        for name in self.model_fields_set:
            if flags.get(name) not in _NOT_GIVEN:
                origins[name] = "flag"
            else:
                origins[name] = (
                    f"environment {configuration.variable(name)}"
                    if name in environment
                    else str(configuration.file_path())
                )
        return origins

    def checked(self) -> Self:
        """Return the settings. Raises CannotServe for one of a pair without the other, and for what has no effect."""
        if not self.bundle:
            raise CannotServe("name the bundle to serve: dpserve serve BUNDLE, or bundle = ... in the file")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise CannotServe("HTTPS needs both --tls-cert and --tls-key")
        tokens = (self.jwt_issuer, self.jwt_audience, self.jwt_keys)
        if any(tokens) and not all(tokens):
            raise CannotServe("tokens need all of --jwt-issuer, --jwt-audience and --jwt-keys")
        for origin in self.origins:
            if not origin.startswith(("https://", "http://")) or origin.count("/") != _SLASHES_OF_AN_ORIGIN:
                raise CannotServe(f"--cors-origin takes an origin, as https://app.example, not {origin!r}")
        for proxy in self.proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise CannotServe(
                    f"--trusted-proxies takes addresses and networks, as 10.0.0.0/8, not {proxy!r}"
                ) from None
        return self

    @property
    def bundles(self) -> tuple[NamedBundle, ...]:
        """The bundles, each with the name that its model is asked by."""
        return tuple(_named_bundle(bundle) for bundle in self.bundle)

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins whose pages may ask."""
        return _parts(self.cors_origin or "")

    @property
    def proxies(self) -> tuple[str, ...]:
        """The proxies that are trusted."""
        return _parts(self.trusted_proxies or "")

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The signature algorithms of tokens."""
        return _parts(self.jwt_algorithm)

    def tls(self) -> Tls | None:
        """Return what HTTPS is served with, or None. Raises CannotServe for files that do not belong together."""
        return None if self.tls_cert is None or self.tls_key is None else Tls(self.tls_cert, self.tls_key)


def _named_bundle(given: Path) -> NamedBundle:
    """Return the bundle that NAME=BUNDLE, or the path of a folder, stands for."""
    name, path = (None, given) if given.exists() else configuration.split_name(str(given))
    return NamedBundle(Path(path), name)


def in_file() -> dict[str, Any]:
    """Return the file's values by setting, with relative paths as seen from the file. Raises ConfigurationError."""
    paths = {name for name, field in ServeSettings.model_fields.items() if "Path" in str(field.annotation)}
    return configuration.in_file(ServeSettings.model_fields, paths | {"ledger", "jwt_keys"})


def _refusal(error: WrongOption, flags: Mapping[str, Any]) -> str:
    """Say which setting cannot be used, and where it stands. Raises the error where that is a flag."""
    name, message = error.field, spelled(error.explanation, as_flag)
    if name in flags:
        raise error
    variable = configuration.in_environment(name)
    if variable is None:
        shown = configuration.redact(in_file().get(name))
        return f"{configuration.file_path()}: {configuration.key(name)} = {shown!r}: {message}"
    text = f"the environment's {configuration.variable(name)}: {message}"
    if variable.startswith("tcp://"):
        text += "; Kubernetes set it for a Service called dpserve: say enableServiceLinks: false"
    return text


def documentation() -> str:
    """Return the settings as tables in Markdown, one for each section of the help."""
    sections: dict[str, list[str]] = {}
    for name, field in ServeSettings.model_fields.items():
        flag = "BUNDLE" if declared(field, "argument") else f"--{configuration.key(name)}"
        ends = range_text(field)
        default = "" if (text := default_text(field)) in (None, "none") else text
        text = f"{field.description}{f' ({ends})' if ends else ''}"
        sections.setdefault(declared(field, "panel") or "What most services need", []).append(
            f"| `{flag}` | {text} | {default} |"
        )
    return "\n".join(
        f"### {title}\n\n| flag | what it is | default |\n|---|---|---|\n" + "\n".join(rows) + "\n"
        for title, rows in sections.items()
    )


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part for word in text.split(",") if (part := word.strip()))
