"""The service that comes of its settings, in one process or several: `dpserve serve`."""

import asyncio
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import typer
from anyio.from_thread import start_blocking_portal
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from dpserve.accounting.budgets import Budget, accepts_for
from dpserve.accounting.currency import EPSILON, RHO, Currency
from dpserve.accounting.ledger import Ledger, LedgerError, Purchase, UnknownLineage, key_digest
from dpserve.accounting.ledger.purchases import buy, settle_unit, words_of_charge
from dpserve.accounting.ledger.receipts import UNNAMED
from dpserve.accounting.losses import Cost
from dpserve.accounting.messages import Message
from dpserve.commands import options
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.mechanisms.registry import DEFAULT, default_price, priced
from dpserve.orphans import end_with_parent
from dpserve.service.admin.app import AdminPort, admin_port
from dpserve.service.admin.keys import METRICS_VARIABLE, admin_key, metrics_key, where_the_key_is
from dpserve.service.errors import CannotServe
from dpserve.service.http.app import HttpOptions, create_app
from dpserve.service.http.authentication import Authentication
from dpserve.service.http.requests import Bodies
from dpserve.service.listener import (
    Application,
    ServiceSettings,
    bind,
    mind_hang_ups,
    run,
    url_of,
    when_answering,
)
from dpserve.service.models import Models
from dpserve.service.pay_once import PayOncePredictor
from dpserve.service.predictor import Predictor
from dpserve.service.telemetry import logs
from dpserve.service.telemetry.logs import RequestLog
from dpserve.service.telemetry.metrics import MULTIPROCESS_FOLDER, Metrics, counts_in
from dpserve.service.telemetry.tracing import RequestSpans, configured_tracing
from dpserve.settings import ServeSettings
from dpserve.training.errors import TrainingError, extra
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.registry import kind_of, pay_once
from dpserve.training.pay_once.model import ReleasedModel
from dpserve.training.purchases import model_purchase

if TYPE_CHECKING:
    from dpserve.service.rpc.server import GrpcPort
    from dpserve.training.exact.questions import MeteredModel

_OTHER_FILES = 256

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a service."""


class _Stopped(Exception):
    """The owner told the service to stop before it answered."""


Model: TypeAlias = "MeteredModel | ReleasedModel"


@dataclass(frozen=True)
class PreparedModel:
    """A model that may be served: verified, with an account of its lineage, and paid for if it is a pay-once model."""

    name: str
    folder: Path
    """Where its bundle lies; no link, for that may be moved."""
    model_id: str


@dataclass
class Prepared:
    """The models that workers serve. Each worker is given those of the moment in which it is started."""

    models: tuple[PreparedModel, ...]


@dataclass(frozen=True)
class ConfiguredService:
    """A service by these settings. It goes to every worker."""

    settings: ServeSettings
    grpc_port: int | None = None
    """Where each of its processes answers over gRPC."""

    @property
    def server(self) -> ServiceSettings:
        """The settings of its port."""
        settings = self.settings
        return ServiceSettings(
            workers=settings.workers,
            largest_batch=settings.largest_batch,
            trusted_proxies=settings.proxies,
            tls=settings.tls(),
        )

    def open_ledger(self) -> AbstractAsyncContextManager[Ledger]:
        """Return the ledger, opened for as long as its context lasts."""
        return options.open_ledger(
            self.settings.ledger,
            self.settings.ledger_replicas,
            rehearsal=self.settings.rehearsal,
            # What a rehearsal loses is no loss.
            journals=None if self.settings.rehearsal else options.journals_folder(),
        )

    def run(self, grpc_taken: socket.socket | None = None) -> None:
        """Answer until stopped. Raises CannotServe and what loading a bundle and opening the ledger raise.

        grpc_taken: holds the port for gRPC, from `take_grpc_port`, until the other ports are taken as well.
        """
        if self.grpc_port is not None:
            _grpc()  # before a model is charged that would not be served
        os.umask(0o077)  # what this process and its store write is the owner's alone
        _raise_file_limit(self.server.max_connections * (1 if self.grpc_port is None else 2))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _stop)
        mind_hang_ups(_stop)
        try:
            with ExitStack() as opened:
                status = self._run(opened, grpc_taken)
        except _Stopped:
            return
        if status:
            raise typer.Exit(status)

    def _run(self, opened: ExitStack, grpc_taken: socket.socket | None) -> int:
        with nullcontext() if grpc_taken is None else grpc_taken:
            listening = opened.enter_context(bind(self.settings.host, self.settings.port))
            admin = open_port(self.settings, listening.getsockname()[1])
            if admin is not None:
                opened.enter_context(admin.listening)
        if self.grpc_port is not None:
            opened.enter_context(_reserved(self.settings.host, self.grpc_port))
        folders = self._bundle_folders()
        loaded = self._load_all(folders)
        asyncio.run(self._check_options())
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="dpserve-")))
        # The owner's port, and the embedded store, are looked after in a thread of their own, and outlive its workers.
        with _stopped_afterwards():
            portal = opened.enter_context(start_blocking_portal(backend_options={"use_uvloop": True}))
        ledger = opened.enter_context(portal.wrap_async_context_manager(self.open_ledger()))
        portal.call(self._prepare, ledger, list(loaded.values()))
        prepared = Prepared(_prepared(loaded, folders))
        models = opened.enter_context(portal.wrap_async_context_manager(self._models(ledger, loaded)))
        metrics, counts, application = self._application(folder, loaded, prepared)
        if admin is not None:
            own = replace(admin, folders=self._folders())
            log = _request_log(self.settings)
            port = admin_port(own, models, ledger, metrics, counts, tls=self.server.tls, log=log)
            opened.enter_context(portal.wrap_async_context_manager(port))
        address = url_of(listening, self.server.tls)
        names = ", ".join(models.names)
        when_answering(address, self.server.tls, partial(self._announce, names, address, admin))
        reload = partial(portal.call, self._reload, ledger, models, prepared)
        return run(application, self.server, listening, before_replacing=reload)

    def _application(
        self, folder: Path, loaded: Mapping[str, Model], prepared: Prepared
    ) -> tuple[Metrics, Callable[[], Sequence[CollectorRegistry]], Callable[[], Application]]:
        """Return where the owner's port counts, what to read all counts from, and what makes an application."""
        metrics = Metrics()
        if self.server.workers == 1:
            application = Application(self._opened(metrics, loaded))
            return metrics, lambda: [metrics.registry], lambda: application
        os.environ[MULTIPROCESS_FOLDER] = str(folder)
        return metrics, lambda: [metrics.registry, counts_in(str(folder))], partial(_worker, self, prepared)

    async def _reload(self, ledger: Ledger, models: Models, prepared: Prepared) -> bool:
        """Read the bundles anew, pay for them, show them at the owner's port, and give them to workers from now on.

        Returns whether all of it was done. If not, what is shown and served stays.
        """
        try:
            folders = self._bundle_folders()
            loaded = await asyncio.to_thread(self._load_all, folders)
            await self._prepare(ledger, list(loaded.values()))
            models.replace(await self._predictors(ledger, loaded))
            prepared.models = _prepared(loaded, folders)
        except Exception as error:  # noqa: BLE001 - whatever it is, what is served stays
            known = isinstance(error, TrainingError | CannotServe | LedgerError | OSError)
            logs.log.error("the workers are not replaced: %s", error if known else logs.kinds(error))
            return False
        return True

    @asynccontextmanager
    async def _models(
        self, ledger: Ledger, served: Mapping[str, Model] | Prepared, *, answering: bool = False
    ) -> AsyncIterator[Models]:
        """Give what is served, for as long as the block lasts.

        served: the models by name, or which to load. answering: whether this process answers, and says so in the log.
        """
        loaded = await asyncio.to_thread(self._load_prepared, served) if isinstance(served, Prepared) else served
        models = Models(await self._predictors(ledger, loaded), self.settings.default)
        if answering:
            for model in models:  # what answers charges by a journal of its own, which names the unit
                await settle_unit(ledger, model.lineage, model.unit, by=options.operating_systems_user())
            for model in models:
                logs.log.info("serving %s: the model %s", model.name, model.certificate.model_id)
        try:
            yield models
        finally:
            await models.drain()
            if answering:
                logs.log.info("stopped serving")

    def _bundle_folders(self) -> list[Path]:
        """Return where the bundles lie now, for a path may be a link."""
        return [Path(os.path.realpath(bundle.folder)) for bundle in self.settings.bundles]

    def _load_prepared(self, prepared: Prepared) -> dict[str, Model]:
        """Return the models by name. Raises CannotServe where another one, or none, lies in a folder by now."""
        loaded = dict[str, Model]()
        for entry in prepared.models:
            try:
                model = self._load(entry.folder)
            except TrainingError as refused:
                raise CannotServe(str(refused)) from refused
            if model.certificate.model_id != entry.model_id:
                raise CannotServe(
                    f"{entry.folder} holds the model {model.certificate.model_id}, and not {entry.model_id}, which was "
                    "verified and paid for"
                )
            loaded[entry.name] = model
        return loaded

    def _load_all(self, folders: Sequence[Path]) -> dict[str, Model]:
        """Return the bundles' models by the names that they are asked by. Raises CannotServe for names that clash.

        folders: where the bundles lie.
        """
        loaded = dict[str, Model]()
        for bundle, folder in zip(self.settings.bundles, folders, strict=True):
            model = self._load(folder)
            name = bundle.name_of(model.certificate)
            if name in loaded:
                raise CannotServe(
                    f"{bundle.folder} would be called {name}, as a bundle before it: serve one of them under another "
                    "name, as NAME=BUNDLE"
                )
            loaded[name] = model
        default = self.settings.default
        if default is not None and default not in loaded:
            raise CannotServe(f"--default {default}: the models are {', '.join(sorted(loaded))}")
        return loaded

    async def _predictors(self, ledger: Ledger, loaded: Mapping[str, Model]) -> list[Predictor]:
        """Return what answers for each model."""
        return [
            self._predictor(model, ledger, await self._currency(ledger, model), name) for name, model in loaded.items()
        ]

    async def _check_options(self) -> None:
        """Raise what a process that answers would raise, after a lineage was charged for a model that is not served."""
        async with aclosing(await _http_options(self.settings)):
            pass
        if (tls := self.server.tls) is not None:
            tls.check_answers(None if self.grpc_port is None else _address(self.settings.host, 0))

    async def _prepare(self, ledger: Ledger, loaded: Sequence[Model]) -> None:
        """See to it that each lineage has an account that can pay, and charge it for its pay-once models.

        Nothing is opened, settled or charged unless all of it can be.
        """
        purchases = [await self._purchase(ledger, model) for model in loaded]
        if self.settings.is_given and not any(UNNAMED in purchase.payers for purchase in purchases):
            raise CannotServe(
                Message(
                    "the lineage {} has blocks, which pay for what its models say, with the budgets that "
                    "they were trained with: leave {lineage_budget} out",
                    purchases[0].lineage,
                )
            )
        for model in loaded:  # whatever fails as it is made, or first asked, is never charged
            self._predictor(model, ledger, await self._currency(ledger, model))
        receipts = await buy(ledger, purchases, by=options.operating_systems_user())
        for lineage in dict.fromkeys(receipt.lineage for receipt in receipts):
            charged = await words_of_charge(ledger, [receipt for receipt in receipts if receipt.lineage == lineage])
            logs.log.info("the lineage %s was charged %s for what is served", lineage, charged)

    async def _purchase(self, ledger: Ledger, model: Model) -> Purchase:
        """Return what a lineage pays for a model before it is served, and for each of its answers."""
        per_answer = None
        if pay_once(model) is None:
            per_answer = self._priced(model, await self._currency(ledger, model)).cost
        return model_purchase(model.certificate, budget=self._budget(model), per_answer=per_answer)

    @asynccontextmanager
    async def _opened(self, metrics: Metrics, served: Mapping[str, Model] | Prepared) -> AsyncIterator[ASGIApp]:
        """Give the application of one process. served: the models by name, or which to load."""
        http = await _http_options(self.settings)
        bodies = Bodies(http.seconds_for_body)
        async with (
            aclosing(http),
            self.open_ledger() as ledger,
            self._models(ledger, served, answering=True) as models,
            metrics.sampled(lambda: models.waiting_rows),
            self._over_grpc(models, ledger, metrics, http, bodies),
        ):
            if ledger.rehearsal:
                logs.log.warning("this is a rehearsal: the ledger may lose charges; use no private records")
            yield create_app(models, ledger, metrics=metrics, options=http, bodies=bodies)

    def _over_grpc(
        self, models: Models, ledger: Ledger, metrics: Metrics, http: HttpOptions, bodies: Bodies
    ) -> AbstractAsyncContextManager[object]:
        """Return what answers over gRPC too, if that is to be."""
        if self.grpc_port is None:
            return nullcontext()
        authentication = Authentication(ledger, http.tokens, http.failed_tries)
        spans = None if http.tracing is None else RequestSpans(http.tracing)
        port = _grpc()(models, authentication, metrics, bodies, http.log, spans)
        return port.listening(
            _address(self.settings.host, self.grpc_port),
            drain_seconds=self.server.drain_seconds,
            most_connections=self.server.max_connections,
            tls=self.server.tls,
        )

    def worker_application(self, prepared: Prepared) -> Application:
        """Return the application of one of several workers."""
        logs.configure(self.settings.log_format)
        logs.name_worker()
        end_with_parent()
        return Application(self._opened(Metrics(), prepared))

    def _folders(self) -> dict[str, Path]:
        """Return the folders that the service must be able to write to: its journals, and an embedded ledger."""
        place = options.ledger_location(self.settings.ledger)
        journals = {} if self.settings.rehearsal else {"journals": options.journals_folder()}
        return journals if "://" in place else journals | {"ledger": Path(place)}

    def _load(self, bundle: Path) -> Model:
        """Return a bundle's model."""
        model = cast(Model, load_model(bundle, self.settings.device))
        if (released := pay_once(model)) is not None:
            self._check_release(released)
        else:
            self._priced(model)
        return model

    def _predictor(self, model: Model, ledger: Ledger, currency: Currency, name: str | None = None) -> Predictor:
        """Return what answers. currency: what the lineage's account counts; name: under which it is asked."""
        settings = self.settings
        limits: dict[str, Any] = {
            "largest_batch": settings.largest_batch,
            "max_batch_size": settings.max_batch_size,
            "max_batch_time": settings.max_batch_time,
            "name": name,
        }
        if (released := pay_once(model)) is not None:
            return PayOncePredictor(released, ledger, **limits)
        from dpserve.service.metered import MeteredPredictor

        return MeteredPredictor(cast("MeteredModel", model), self._priced(model, currency), ledger, **limits)

    def _budget(self, model: Model) -> Budget | None:
        if not self.settings.is_given:
            return None
        released = pay_once(model)
        cost = self._priced(model).cost if released is None else Cost.parse(released.certificate.cost)
        return self.settings.budget(self.settings.accepting(self.settings.accepts, accepts_for(cost)))

    def _check_release(self, model: ReleasedModel) -> None:
        """Raise CannotServe for settings that concern other models alone, where there is no other."""
        if len(self.settings.bundle) != 1:
            return
        given = (self.settings.mechanism, self.settings.price, self.settings.selection)
        if any(each is not None for each in given):
            raise CannotServe(
                f"{model.certificate.name} is a pay-once model: its noise was drawn when it was "
                "trained, and its price fixed, so leave --mechanism, --price and --selection out"
            )

    def _priced(self, model: Model, currency: Currency = RHO) -> Mechanism:
        """Return what answers. currency: what the lineage's account counts, which decides on the default price."""
        mechanism = self.settings.mechanism or DEFAULT
        price = self.settings.price or default_price(mechanism, pure=currency is EPSILON)
        chosen = priced(mechanism, price, len(model.certificate.classes), self.settings.selection)
        kind_of(model).check_mechanism(model, chosen, accept_unproven=self.settings.accept_unproven)
        if chosen.status != "proven" and not self.settings.accept_unproven:
            raise CannotServe(
                f"the guarantee of the mechanism {chosen.name!r} is {chosen.status}: it is claimed by its authors, and "
                "for three or more classes no finite epsilon holds. Serve it with --accept-unproven, or choose a "
                "proven one"
            )
        return chosen

    async def _currency(self, ledger: Ledger, model: Model) -> Currency:
        """Return what the account of a model's lineage counts, or will count when this service has opened it."""
        await ledger.join(model.certificate.lineage)
        try:
            return (await ledger.lineage(model.certificate.lineage)).budget.currency
        except UnknownLineage:
            budget = self._budget(model)
            return RHO if budget is None else budget.currency

    def _announce(self, names: str, address: str, admin: AdminPort | None) -> None:
        kind = self.settings.log_format
        if admin is not None:
            where = where_the_key_is(options.state_folder())
            own = url_of(admin.listening, self.server.tls)
            typer.echo(logs.announcement(f"the owner's port is {own}, its key is in {where}", kind))
        if self.grpc_port is not None:
            own = _address(self.settings.host, self.grpc_port)
            typer.echo(logs.announcement(f"gRPC is answered on {own}", kind))
        typer.echo(logs.announcement(f"serving {names} on {address}", kind))


def open_port(settings: ServeSettings, service_port: int) -> AdminPort | None:
    """Listen on the owner's port, if there is to be one. Raises CannotServe and OSError."""
    if not settings.admin:
        return None
    folder = options.state_folder()
    key, metrics = admin_key(folder), metrics_key()
    if key == metrics:
        raise CannotServe(f"{METRICS_VARIABLE} must not be the admin key: it is for those who may read /metrics alone")
    return AdminPort(
        _listening(settings, service_port),
        key_digest(key),
        metrics_digest=None if metrics is None else key_digest(metrics),
    )


def _listening(settings: ServeSettings, service_port: int) -> socket.socket:
    if settings.admin_port is not None:
        return bind(settings.admin_host, settings.admin_port, "admin_port")
    following = service_port + 1 if 0 < service_port < 65535 else 0
    try:
        return bind(settings.admin_host, following, "admin_port")
    except CannotServe:
        return bind(settings.admin_host, 0, "admin_port")  # nobody asked for that very port


def _raise_file_limit(connections: int) -> None:
    """Let this process and its workers have so many connections in addition to the files that they need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted if hard < 0 else min(wanted, hard)), hard))


def _stop(*_: object) -> None:
    raise _Stopped


@contextmanager
def _stopped_afterwards() -> Iterator[None]:
    """Hold back what ends the service until a thread is there that can be ended: its start may not be interrupted."""
    came: list[int] = []
    held = [number for number in _ENDING if signal.getsignal(number) is _stop]
    for number in held:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number in held:
            signal.signal(number, _stop)
    if came:
        raise _Stopped


def _prepared(loaded: Mapping[str, Model], folders: Sequence[Path]) -> tuple[PreparedModel, ...]:
    """Return which models these are, for workers. folders: where each was loaded from."""
    return tuple(
        PreparedModel(name, folder, model.certificate.model_id)
        for (name, model), folder in zip(loaded.items(), folders, strict=True)
    )


def _worker(service: ConfiguredService, prepared: Prepared) -> Application:
    return service.worker_application(prepared)


def _grpc() -> "type[GrpcPort]":
    """Return what answers over gRPC. Raises MissingExtra."""
    with extra("grpc", "answering over gRPC"):
        from dpserve.service.rpc.server import GrpcPort
    return GrpcPort


def take_grpc_port(settings: ServeSettings) -> socket.socket | None:
    """Return what holds the port for gRPC, if there is to be one. Raises CannotServe if it is taken."""
    return None if settings.grpc_port is None else bind(settings.host, settings.grpc_port, "grpc_port")


def _reserved(host: str, port: int) -> socket.socket:
    """Return what keeps a port from connections of this machine's own until each worker listens on it by itself."""
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        held.bind((host, port))
    except OSError as error:
        held.close()
        raise CannotServe(
            f"cannot listen on {_address(host, port)} for gRPC: {error.strerror}; choose another with --grpc-port"
        ) from error
    return held


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _request_log(settings: ServeSettings) -> RequestLog | None:
    """Return what writes a line for each request, or None."""
    return RequestLog() if settings.log_format == "json" else None


async def _http_options(settings: ServeSettings) -> HttpOptions:
    """Return who may ask, and what is written down. Raises CannotServe."""
    tokens = None
    if settings.jwt_issuer and settings.jwt_audience and settings.jwt_keys:
        with extra("jwt", "taking tokens"):
            from dpserve.service.http.tokens import Tokens, TokenSettings

        algorithms = settings.algorithms
        tokens = await Tokens.open(
            TokenSettings(
                settings.jwt_issuer,
                settings.jwt_audience,
                settings.jwt_keys,
                settings.jwt_claim,
                algorithms,
                settings.jwt_scope_claim,
            )
        )
    tries = None
    if settings.failed_tries:
        from dpserve.service.http.failed_tries import FailedTries

        tries = FailedTries(settings.failed_tries)
    return HttpOptions(
        tokens=tokens,
        failed_tries=tries,
        origins=settings.origins,
        log=_request_log(settings),
        tracing=configured_tracing(),
    )
