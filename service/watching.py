"""A folder of bundles that is watched: what appears there is served, what is removed is served no more.

Promises: a bundle is served once it has stood still for one look and was verified whole; one that cannot be served is
logged once, whatever is wrong with it, and leaves the others as they are, also the one that was served from its folder
before. Of several bundles with one name the first by its folder's name is served: at every look, whatever was served
before, so that a process that starts later decides as the others did. Nothing is charged for the others; when the first
goes, the next is served. If the first is verified and then cannot be served, as one that cannot be paid for, the name
is not served at all.

Every process of a service looks by itself, and so all of them serve the same within two looks and the time to load.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

from accounting.ledger import LedgerError
from service.errors import CannotServe
from service.models import Models
from service.predictor import Predictor
from service.telemetry.logs import kinds, log
from training.bundles.certificate import ModelCertificate
from training.bundles.sealing import CERTIFICATE_FILE
from training.errors import TrainingError

SECONDS_BETWEEN_LOOKS = 1.0

Stamp = tuple[tuple[str, int, int, int], ...]
"""Name, inode, time of the last change and size of each file of a bundle."""


def stamp_of(bundle: Path) -> Stamp:
    """Return what tells a bundle that was changed. Raises OSError."""
    states = [(file.name, _state_of(file)) for file in sorted(bundle.iterdir())]
    return tuple((name, state.st_ino, state.st_mtime_ns, state.st_size) for name, state in states)


def _state_of(file: Path) -> os.stat_result:
    try:
        return file.stat()
    except OSError:
        return file.lstat()  # a link to nothing, or to itself


def _bundles_in(folder: Path, before: Mapping[Path, Stamp]) -> dict[Path, Stamp]:
    """Return the bundles of a folder; names that begin with a dot are drafts. Raises OSError for the folder itself.

    before: the bundles of the last look. What cannot be read now is as it was: it was not removed.
    """
    bundles = {}
    for each in sorted(folder.iterdir()):
        try:
            if not each.name.startswith(".") and (each / CERTIFICATE_FILE).exists():
                bundles[each] = stamp_of(each)
        except FileNotFoundError:
            continue  # removed since it was listed
        except OSError:
            if each in before:
                bundles[each] = before[each]
    return bundles


class Verified(Protocol):
    """A bundle's model, verified."""

    @property
    def certificate(self) -> ModelCertificate:
        """Says its name."""
        ...


class Watch:
    """Keeps `models` as the bundles in `folder` are. Use it on the event loop of `models`."""

    def __init__(
        self,
        folder: Path,
        models: Models,
        verified: Callable[[Path], Awaitable[Verified]],
        opened: Callable[[Path], Awaitable[Predictor]],
    ) -> None:
        """verified: reads a bundle, and charges nothing. opened: returns what answers. `models`: what is not ours."""
        self._folder = folder
        self._models = models
        self._verified = verified
        self._opened = opened
        self._others = frozenset(models.names)
        self._seen: Mapping[Path, Stamp] = {}
        self._names: dict[Path, tuple[Stamp, str]] = {}
        """The name of each verified bundle: of one name the first in the order of the folders is served."""
        self._served: dict[str, tuple[Path, Stamp]] = {}
        self._refused: dict[Path, tuple[Stamp, str]] = {}
        """Why a bundle is not served. It is tried again where the stamp is another."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - the next look may succeed; until then all is served as it was
                log.error("the folder of bundles cannot be watched: %s", kinds(error))

    async def look(self, *, first: bool = False) -> None:
        """Serve what stands still since the look before; at the first look, all that is there. Raises OSError."""
        stamps = await asyncio.to_thread(_bundles_in, self._folder, self._seen)
        self._names = {bundle: entry for bundle, entry in self._names.items() if bundle in stamps}
        self._refused = {bundle: entry for bundle, entry in self._refused.items() if bundle in stamps}
        read: list[Verified] = []  # what is opened below is in memory still
        for bundle, stamp in stamps.items():
            if (first or self._seen.get(bundle) == stamp) and stamp not in self._stamps(bundle):
                read += await self._verify(bundle, stamp)
        self._seen = stamps
        firsts: dict[str, Path] = {}
        for bundle in stamps:
            if bundle not in self._names:
                continue
            stamp, name = self._names[bundle]
            if name in self._others or firsts.setdefault(name, bundle) != bundle:
                where = "" if name in self._others else f" from {firsts[name]}"
                self._refuse(bundle, (), f"a model called {name} is served already{where}")
        for name, bundle in firsts.items():
            await self._serve(name, bundle, self._names[bundle][0])
        for name, (bundle, _) in list(self._served.items()):
            # What a bundle was before it was damaged is served on.
            if name not in firsts and (bundle not in stamps or bundle in self._names):
                self._remove(name)

    def _stamps(self, bundle: Path) -> list[Stamp]:
        return [entries[bundle][0] for entries in (self._names, self._refused) if bundle in entries]

    async def _verify(self, bundle: Path, stamp: Stamp) -> list[Verified]:
        self._names.pop(bundle, None)
        try:
            model = await self._verified(bundle)
            name = model.certificate.name
        except Exception as error:  # noqa: BLE001 - whatever a bundle does, it is refused, and no other
            # What was not to be had for a moment, as memory, is there at another look, and in other processes.
            passing = isinstance(error.__cause__ or error, OSError | MemoryError)
            self._refuse(bundle, () if passing else stamp, _describe(error))
            return []
        self._refused.pop(bundle, None)
        self._names[bundle] = (stamp, name)
        return [model]

    async def _serve(self, name: str, bundle: Path, stamp: Stamp) -> None:
        """Serve the bundle whose turn it is under this name."""
        served = self._served.get(name)
        if served == (bundle, stamp):
            return
        if self._refused.get(bundle, ((), ""))[0] != stamp:
            try:
                predictor = await self._opened(bundle)
                if predictor.certificate.name != name:
                    raise CannotServe("it was changed while it was read")
            except LedgerError as error:  # what the ledger could not do may be done at the next look
                self._refuse(bundle, (), _describe(error))
                return
            except Exception as error:  # noqa: BLE001 - whatever a bundle does, it is refused, and no other
                self._refuse(bundle, stamp, _describe(error))
            else:
                self._refused.pop(bundle, None)
                self._models.add(predictor)
                self._served[name] = (bundle, stamp)
                return
        if served is not None and served[0] != bundle:
            # Processes that start now never had it.
            self._remove(name)

    def _remove(self, name: str) -> None:
        self._models.remove(name)
        del self._served[name]

    def _refuse(self, bundle: Path, stamp: Stamp, reason: str) -> None:
        if self._refused.get(bundle, (stamp, ""))[1] != reason:
            log.error("%s is not served: %s", bundle, reason)
        self._refused[bundle] = (stamp, reason)


def _describe(error: Exception) -> str:
    """Return why a bundle is refused: an error's own words where they are meant to be read."""
    return str(error) if isinstance(error, TrainingError | CannotServe | LedgerError | OSError) else kinds(error)
