"""What `dpserve serve` was told, and the service that comes of it: in this process, or in several."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from shutil import rmtree
from socket import socket
from typing import TYPE_CHECKING

import typer
import uvloop

from accounting.budgets import Budget, accepts_for
from accounting.ledger import Ledger, SharedHeads
from accounting.losses import Cost
from dpserve.commands import options
from dpserve.commands.admin import AdminOptions, where_the_key_is
from dpserve.commands.front_options import FrontOptions
from mechanisms.mechanism import Mechanism, priced
from service import memory
from service.admin.server import AdminPort
from service.data_plane import ServedModel
from service.errors import CannotServe
from service.http.waiting import answering_that_it_is_not_ready
from service.open_connections import OpenConnections
from service.run import (
    ServiceSettings,
    bind,
    check_affordable,
    open_lineage,
    serve,
    serve_release,
    url_of,
)
from service.stopping import stopping_on_signals
from service.telemetry.logs import Format, announcement, name_worker
from service.telemetry.metrics import count_as, share_between_processes
from service.workers import Supervisor, Worker
from training.loading import has_backbone, load_model
from training.published.bundle import PublishedNetwork
from training.releases.model import ReleasedModel

if TYPE_CHECKING:
    from dpserve.self_audit import AuditOfTheFirstWorker, SelfAudit

DEFAULT_MECHANISM, DEFAULT_PRICE = "gaussian", "noise-multiplier:20"

_SHOWN_AUDIT = "self-audit.json"


@dataclass(frozen=True)
class Watch:
    """How the service is to audit itself."""

    key: str
    seconds: float
    rows: int


@dataclass(frozen=True)
class LedgerOptions:
    """Which ledger, and what is asked of it."""

    location: str
    replicas: int
    remembered_rows: int
    rehearsal: bool


@dataclass(frozen=True)
class _Model:
    """What is served, and the budget that was said. mechanism: None for a release that is paid for once."""

    model: ServedModel | ReleasedModel
    mechanism: Mechanism | None
    budget: Budget | None


@dataclass(frozen=True)
class _Shared:
    """What the workers of a service have in common from before they are forked."""

    folder: Path
    heads: SharedHeads
    open_connections: OpenConnections


@dataclass(frozen=True, kw_only=True)
class Service:
    """What was said."""

    bundle: Path
    device: str | None
    mechanism: str | None
    price: str | None
    accept_unproven: bool
    watch: Watch | None
    words: options.BudgetWords
    accepts: str | None
    ledger: LedgerOptions
    settings: ServiceSettings
    front: FrontOptions
    owner: AdminOptions

    def run(self, workers: int) -> None:
        """Answer until told to stop. Raises CannotServe and what loading a bundle and opening the ledger raise."""
        memory.keep_large_blocks_apart()
        with ExitStack() as opened:
            listening = opened.enter_context(bind(self.settings))
            if workers > 1 and not has_backbone(self.bundle):
                _ = self._loaded  # what is there before a fork is shared; who asks meanwhile waits
            admin = self.owner.open(listening.getsockname()[1])
            if admin is not None:
                opened.enter_context(admin.listening)
            if workers == 1:
                self._work(listening, admin, None, Worker())
                return
            shared = _Shared(Path(share_between_processes()), SharedHeads(), OpenConnections(workers))
            opened.callback(rmtree, shared.folder, ignore_errors=True)
            work = partial(self._work_and_say, listening, admin, shared)
            owners = [] if admin is None else [admin.listening]
            drain_seconds = self.settings.drain_seconds
            supervisor = Supervisor(
                workers,
                work,
                [listening],
                owners,
                drain_seconds=drain_seconds,
                open_connections=shared.open_connections,
            )
            status = supervisor.run()
        if status:
            raise typer.Exit(status)

    def _work_and_say(self, listening: socket, admin: AdminPort | None, shared: _Shared, worker: Worker) -> None:
        from dpserve.cli import errors_said

        count_as(worker.number)
        name_worker(worker.number)
        with errors_said():
            self._work(listening, admin, shared, worker)

    def _work(self, listening: socket, admin: AdminPort | None, shared: _Shared | None, worker: Worker) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._answer(listening, admin if worker.first else None, shared, worker))

    async def _answer(self, listening: socket, admin: AdminPort | None, shared: _Shared | None, worker: Worker) -> None:
        """Be one worker. shared: what those have who share a port; None for a service of one process."""
        async with stopping_on_signals(), worker.supervised() as all_ready, AsyncExitStack() as not_ready:
            if worker.opens:
                await not_ready.enter_async_context(answering_that_it_is_not_ready(listening, self.settings.tls))
            loaded = await asyncio.to_thread(lambda: self._loaded)
            audit = self._audit(None if shared is None else shared.folder / _SHOWN_AUDIT, worker)
            if admin is not None and audit is not None:
                admin = replace(admin, live_audit=audit.published)
            place = None if shared is None else shared.open_connections.of(worker.number)
            settings = replace(self.settings, admin=admin, front=await self.front.front(), place=place)

            async def before_answering() -> None:
                await all_ready()
                await not_ready.aclose()

            async with Ledger.open(
                self.ledger.location,
                rehearsal=self.ledger.rehearsal,
                replicas=self.ledger.replicas,
                # What a rehearsal loses is no loss.
                journals=None if self.ledger.rehearsal else options.journals_folder(),
                remembered_rows=self.ledger.remembered_rows,
                heads=None if shared is None else shared.heads,
            ) as ledger:
                # Whoever comes later finds the account; its budget may have been changed since the service began, and a
                # service that goes on with what it refuses then needs its workers.
                budget = loaded.budget if worker.opens else None
                account = await open_lineage(ledger, loaded.model.certificate.lineage, budget)
                announce = partial(_announce, loaded.model, settings) if worker.opens else _say_nothing
                if loaded.mechanism is not None and worker.opens:
                    check_affordable(account, loaded.mechanism)
                await _serve(loaded, ledger, listening, settings, announce, before_answering, audit, opens=worker.opens)

    @cached_property
    def _loaded(self) -> _Model:
        model = load_model(self.bundle, self.device)
        if isinstance(model, ReleasedModel):
            self._check_release(model)
            mechanism, cost = None, Cost.parse(model.certificate.cost)
        else:
            mechanism = self._priced(model)
            cost = mechanism.cost
        return _Model(model, mechanism, self.words.budget_if_given(self.accepts or accepts_for(cost)))

    def _check_release(self, model: ReleasedModel) -> None:
        if self.watch is not None:
            raise CannotServe("a release that is paid for once has no noise left to audit: leave --self-audit-key out")
        if self.mechanism is not None or self.price is not None:
            raise CannotServe(
                f"{model.certificate.name} is a release that is paid for once: its noise was drawn when it was "
                "trained, and its price fixed, so leave --mechanism and --price out"
            )

    def _priced(self, model: ServedModel) -> Mechanism:
        mechanism, price = self.mechanism or DEFAULT_MECHANISM, self.price or DEFAULT_PRICE
        chosen = priced(mechanism, price, len(model.certificate.classes))
        if isinstance(model, PublishedNetwork):
            model.certificate.check_mechanism(chosen, accept_unproven=self.accept_unproven)
        if chosen.status != "proven" and not self.accept_unproven:
            raise CannotServe(
                f"the guarantee of the mechanism {chosen.name!r} is {chosen.status}: it is claimed by its authors, and "
                "for three or more classes no finite epsilon holds. Serve it with --accept-unproven, or choose a "
                "proven one"
            )
        return chosen

    def _audit(self, shown: Path | None, worker: Worker) -> "SelfAudit | AuditOfTheFirstWorker | None":
        """Return the service's own audit: of the first worker, which the others show."""
        if self.watch is None:
            return None
        from dpserve.self_audit import AuditOfTheFirstWorker, SelfAudit

        if not worker.first:
            assert shown is not None
            return AuditOfTheFirstWorker(shown)
        model, mechanism = self._loaded.model, self._loaded.mechanism
        assert mechanism is not None
        assert not isinstance(model, ReleasedModel)
        folder = options.state_folder() / "self-audit"
        return SelfAudit(model, mechanism, self.watch.key, self.watch.seconds, self.watch.rows, folder, shown)


async def _serve(
    loaded: _Model,
    ledger: Ledger,
    listening: socket,
    settings: ServiceSettings,
    announce: Callable[[str], None],
    before_answering: Callable[[], Awaitable[None]],
    audit: "SelfAudit | AuditOfTheFirstWorker | None",
    *,
    opens: bool,
) -> None:
    if isinstance(loaded.model, ReleasedModel):
        await serve_release(
            loaded.model, ledger, listening, settings, opens=opens, on_ready=announce, before_answering=before_answering
        )
        return
    assert loaded.mechanism is not None
    run = partial(serve, loaded.model, loaded.mechanism, ledger, listening, settings, before_answering=before_answering)
    if audit is None:
        await run(on_ready=announce)
        return

    def announce_and_watch(address: str) -> None:
        announce(address)
        audit.start(address, settings.tls)

    try:
        await run(on_ready=announce_and_watch, add_routes=audit.add_route)
    finally:
        audit.stop()


def _announce(model: ServedModel | ReleasedModel, settings: ServiceSettings, address: str) -> None:
    kind: Format = "json" if settings.front.log_requests else "text"
    if settings.admin is not None:
        own = url_of(settings.admin.listening, settings.tls)
        typer.echo(announcement(f"the owner's port is {own}, its key is in {where_the_key_is()}", kind))
    typer.echo(announcement(f"serving {model.certificate.name} on {address}", kind))


def _say_nothing(address: str) -> None:
    del address
