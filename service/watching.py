"""A folder of bundles that is watched: what appears there is served, what is removed is served no more.

Promises: a bundle is served once it has stood still for one look and was verified whole; one that cannot be served is
logged once, and leaves the others as they are, also the one that was served from its folder before. Every process of a
service looks by itself, and so all of them serve the same within two looks and the time to load.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from accounting.ledger import LedgerError
from service.errors import CannotServe
from service.models import Models
from service.predictor import Predictor
from service.telemetry.logs import kinds, log
from training.errors import TrainingError
from training.sealing import CERTIFICATE_FILE

SECONDS_BETWEEN_LOOKS = 1.0

Stamp = tuple[tuple[str, int, int, int], ...]
"""Name, inode, time of the last change and size of each file of a bundle."""


def stamp_of(bundle: Path) -> Stamp:
    """Return what tells a bundle that was changed. Raises OSError."""
    found = [(file.name, file.stat()) for file in sorted(bundle.iterdir())]
    return tuple((name, state.st_ino, state.st_mtime_ns, state.st_size) for name, state in found)


def _bundles_in(folder: Path, before: Mapping[Path, Stamp]) -> dict[Path, Stamp]:
    """Return the bundles of a folder; names that begin with a dot are drafts. Raises OSError for the folder itself.

    before: the bundles of the last look. What cannot be read now is as it was: it was not removed.
    """
    found = {}
    for each in sorted(folder.iterdir()):
        try:
            if not each.name.startswith(".") and (each / CERTIFICATE_FILE).exists():
                found[each] = stamp_of(each)
        except FileNotFoundError:
            continue  # removed since it was listed
        except OSError:
            if each in before:
                found[each] = before[each]
    return found


class Watch:
    """Keeps `models` as the bundles in `folder` are. Use it on the event loop of `models`."""

    def __init__(self, folder: Path, models: Models, opened: Callable[[Path], Awaitable[Predictor]]) -> None:
        """opened: verifies a bundle, and returns what answers."""
        self._folder = folder
        self._models = models
        self._opened = opened
        self._seen: Mapping[Path, Stamp] = {}
        self._served: dict[Path, tuple[Stamp, str]] = {}
        self._refused: dict[Path, tuple[Stamp, str]] = {}

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
        found = await asyncio.to_thread(_bundles_in, self._folder, self._seen)
        for bundle in self._served.keys() - found.keys():
            self._models.remove(self._served.pop(bundle)[1])
        self._refused = {bundle: said for bundle, said in self._refused.items() if bundle in found}
        for bundle, stamp in found.items():
            known = [each[bundle][0] for each in (self._served, self._refused) if bundle in each]
            if stamp not in known and (first or self._seen.get(bundle) == stamp):
                await self._serve(bundle, stamp)
        self._seen = found

    async def _serve(self, bundle: Path, stamp: Stamp) -> None:
        before = self._served.get(bundle, (stamp, ""))[1]
        try:
            predictor = await self._opened(bundle)
            name = predictor.certificate.name
            if name != before and name in self._models.names:
                raise CannotServe(f"a model called {name} is served already")
        except (TrainingError, CannotServe, LedgerError, OSError, ValueError) as error:
            said = str(error)
            if self._refused.get(bundle, (stamp, ""))[1] != said:
                log.error("%s is not served: %s", bundle, said)
            # What the ledger could not do may be done at the next look.
            self._refused[bundle] = ((), said) if isinstance(error, LedgerError) else (stamp, said)
            return
        self._refused.pop(bundle, None)
        if name != before:
            self._models.remove(before)
        self._models.add(predictor)
        self._served[bundle] = (stamp, name)
