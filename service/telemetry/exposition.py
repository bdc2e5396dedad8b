"""The text of `GET /metrics` at the owner's port: the counts of all processes, and the lineages' accounts."""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dpserve.accounting.ledger import Ledger, LedgerError, LineageAccount
from dpserve.accounting.ledger.store import StoreUse
from dpserve.accounting.ledger.upkeep import Task, upkeep
from dpserve.service.models import Models
from dpserve.service.telemetry.metrics import metric

CONTENT_TYPE = CONTENT_TYPE_LATEST

disable_created_metrics()  # type: ignore[no-untyped-call]


async def exposition(
    models: Models,
    ledger: Ledger,
    counts: Callable[[], Sequence[CollectorRegistry]],
    folders: Mapping[str, Path] = MappingProxyType({}),
) -> bytes:
    """Return the text that Prometheus reads.

    counts: what to read, in a thread. folders: where the service writes, by what it is.
    """
    lineages = sorted({each.lineage for each in models})
    try:
        async with asyncio.timeout(_SECONDS_FOR_LEDGER):
            accounts = await asyncio.gather(*map(ledger.lineage, lineages))
            use = await ledger.store.use()
            kept = [*_store_metrics(use, ledger.store.replicas_needed), _upkeep_metrics(await upkeep(ledger))]
    except (LedgerError, TimeoutError):
        accounts, kept = None, []
    kept += await _promotion_metrics(ledger)
    rooms = _folder_metrics(await asyncio.to_thread(_rooms, folders))
    now = _Now([_service_metrics(models), *_account_metrics(accounts), *kept, *rooms])
    return b"".join([*await asyncio.to_thread(_read, counts), generate_latest(now)])


_SECONDS_FOR_LEDGER = 0.75
"""A ledger that takes longer counts as down. The rest is told within the second that a scrape can spare."""

_SECONDS_FOR_SENTINELS = 0.2
"""Sentinels, which keep nothing, answer at once or are taken for away."""

_TRIES = 20
_SECONDS_BETWEEN_TRIES = 0.05


def _read(counts: Callable[[], Sequence[CollectorRegistry]]) -> list[bytes]:
    """Return the texts of the counts. The file of a worker that begins just now cannot be read yet: try again."""
    for tries_left in reversed(range(_TRIES)):
        try:
            return [generate_latest(each) for each in counts()]
        except Exception:
            if not tries_left:
                raise
            time.sleep(_SECONDS_BETWEEN_TRIES)
    raise AssertionError


@dataclass(frozen=True)
class _Now(Collector):
    """A collector of metrics that were just read."""

    found: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.found


def _gauge(name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(metric(name), text, labels=labels)
    for named, value in values:
        family.add_metric(named, value)
    return family


def _service_metrics(models: Models) -> Metric:
    labels = ("version", "model", "mechanism", "status")
    served = [((version("dpserve"), each.name, each.mechanism_name, each.mechanism_status), 1) for each in models]
    return _gauge("dpserve_info", "What is served, and how; always 1.", labels, served)


def _account_metrics(accounts: Sequence[LineageAccount] | None) -> list[Metric]:
    text = "1 if the ledger answers and holds the account of every lineage that is served."
    up = _gauge("dpserve_ledger_up", text, (), [((), accounts is not None)])
    if accounts is None:
        return [up]
    labels = ("lineage", "currency")
    counted = [(each, each.budget.currency) for each in accounts]
    spent = [((each.lineage, currency.name), currency.value(each.spent)) for each, currency in counted]
    limits = [((each.lineage, currency.name), currency.value(each.budget.limit)) for each, currency in counted]
    return [
        up,
        _gauge("dpserve_lineage_spent", "What the lineage has spent, in rho or pure epsilon.", labels, spent),
        _gauge("dpserve_lineage_limit", "The lineage's budget, in rho or pure epsilon.", labels, limits),
    ]


async def _promotion_metrics(ledger: Ledger) -> list[Metric]:
    text = "1 if Sentinels see enough of each other to make a replica the primary; absent without Sentinels."
    try:
        async with asyncio.timeout(_SECONDS_FOR_SENTINELS):
            promotes = await ledger.store.can_promote()
    except TimeoutError:
        promotes = False
    return [] if promotes is None else [_gauge("dpserve_store_can_promote", text, (), [((), promotes)])]


def _store_metrics(use: StoreUse, replicas_needed: int) -> list[Metric]:
    memory = "Memory that the ledger's store uses."
    limit = "Memory that it may use: its maxmemory, or all of its machine."
    file = "Size of its append-only file."
    writes = "1 if its newest write to the file, and the newest rewrite, succeeded."
    replicas = "Replicas that follow its primary."
    needed = "Replicas on whose disks a charge must be before it is answered."
    return [
        _gauge("dpserve_store_memory_bytes", memory, (), [((), use.memory)]),
        _gauge("dpserve_store_memory_limit_bytes", limit, (), [((), use.memory_limit)]),
        _gauge("dpserve_store_file_bytes", file, (), [((), use.file)]),
        _gauge("dpserve_store_writes_ok", writes, (), [((), use.writes)]),
        _gauge("dpserve_store_replicas", replicas, (), [((), use.replicas)]),
        _gauge("dpserve_store_replicas_needed", needed, (), [((), replicas_needed)]),
    ]


def _upkeep_metrics(done: Mapping[Task, int]) -> Metric:
    text = "When the ledger was last backed up, and a backup last rehearsed; 0 for never."
    return _gauge("dpserve_upkeep_timestamp_seconds", text, ("task",), [((task,), time) for task, time in done.items()])


def _rooms(folders: Mapping[str, Path]) -> dict[str, tuple[int, int]]:
    """Return the free bytes and all bytes of the file system of each folder that is there."""
    found = {}
    for name, folder in folders.items():
        with suppress(OSError):
            room = os.statvfs(folder)
            found[name] = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    return found


def _folder_metrics(rooms: Mapping[str, tuple[int, int]]) -> list[Metric]:
    free = [((name,), left) for name, (left, _) in rooms.items()]
    whole = [((name,), size) for name, (_, size) in rooms.items()]
    return [
        _gauge("dpserve_folder_free_bytes", "Room left where the service writes, by folder.", ("folder",), free),
        _gauge("dpserve_folder_size_bytes", "Size of that file system.", ("folder",), whole),
    ]
