"""The bundles of a service: those that it was started with, and a folder that is watched.

What appears in the folder is served, what is removed is served no more. Promises: a bundle is served once it has stood
still for one look and was verified whole; one that cannot be served is logged once, whatever is wrong with it, and
leaves the others as they are, also the one that was served from its folder before. Of several bundles
with one name the first by its folder's name is served: at every look, whatever was served before, so that a process
that starts later decides as the others did. Nothing is charged for the others; when the first goes, the next is served.
If the first is verified and then cannot be served, as one that cannot be paid for, the name is not served at all.

Several bundles of one name and one lineage are versions of a model: of these the owner says by `models promote` which
is served, in the lineage's account, where all services read it. One that was promoted and is not there, or cannot be
served, leaves the name to the version that was promoted before it; without that, to the first. What a client holds and
may spend is the lineage's: a version of another lineage never takes the name.

Every process of a service looks by itself, and so all of them serve the same within two looks and the time to load.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class NamedBundle:
    """A bundle's folder, and the name that its model is asked by; None for the certificate's."""

    folder: Path
    name: str | None = None

    def name_of(self, certificate: ModelCertificate) -> str:
        """Return the name that the bundle's model, which has this certificate, is asked by."""
        return certificate.name if self.name is None else self.name


@dataclass(frozen=True)
class Version:
    """A verified bundle. Those of one name and one lineage are versions of a model."""

    bundle: Path
    stamp: Stamp
    name: str
    lineage: str
    model_id: str


async def _none_promoted(_: str) -> Mapping[str, tuple[str, ...]]:
    return {}


class Watch:
    """Keeps `models` as the bundles are. Use it on the event loop of `models`."""

    def __init__(
        self,
        folder: Path | None,
        models: Models,
        verified: Callable[[Path], Awaitable[Verified]],
        opened: Callable[[Version, bool], Awaitable[Predictor]],
        promoted: Callable[[str], Awaitable[Mapping[str, tuple[str, ...]]]] = _none_promoted,
        given: Sequence[NamedBundle] = (),
    ) -> None:
        """Serve the bundles that are given, then those in the folder.

        verified: reads a bundle, and charges nothing. opened: returns what answers, and is told whether a service that
        begins has nothing else for the name. promoted: of a lineage, the ids of
        the models that the owner gave each name, the newest first; may raise LedgerError.
        """
        self._folder = folder
        self._models = models
        self._verified = verified
        self._opened = opened
        self._promoted = promoted
        self._given = given
        self._fixed: list[Version] = []
        """Those that are given, which are read once. They come first."""
        self._seen: Mapping[Path, Stamp] = {}
        self._versions: dict[Path, Version] = {}
        """Those of the folder."""
        self._promotions: dict[str, Mapping[str, tuple[str, ...]]] = {}
        self._served: dict[str, Version] = {}
        self._refused: dict[Path, tuple[Stamp, str]] = {}
        """Why a bundle is not served. It is tried again where the stamp is another."""

    @property
    def is_needed(self) -> bool:
        """Whether anything can change after the first look."""
        return self._folder is not None or len({each.name for each in self._fixed}) < len(self._fixed)

    async def begin(self) -> dict[Path, Verified]:
        """Read the bundles that are given; return the models of those that are the only ones of their names, by bundle.

        Raises CannotServe for two of one name that are no versions of a model, what a bundle is refused with, and
        LedgerError.
        """
        read: dict[Path, Verified] = {}
        for each in self._given:
            read[each.folder] = model = await self._verified(each.folder)
            stamp = await asyncio.to_thread(stamp_of, each.folder)
            version = _version(each.folder, stamp, each.name_of(model.certificate), model.certificate)
            for other in self._fixed:
                if other.name == version.name:
                    _check_versions(other, version)
            self._fixed.append(version)
        return {each.bundle: read[each.bundle] for each, *others in self._by_name().values() if not others}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - the next look may succeed; until then all is served as it was
                log.error("the bundles cannot be watched: %s", kinds(error))

    async def look(self, *, first: bool = False) -> None:
        """Serve what stands still since the look before; at the first look, all that is there.

        Raises OSError for the folder; at the first look what a given bundle is refused with.
        """
        try:
            read = await self._read_folder(first=first) if self._folder is not None else []
        except OSError:
            if first:  # what is given is served without it
                await self._serve_all(first=first)
            raise
        await self._serve_all(first=first)
        del read  # what was opened was in memory still

    async def _read_folder(self, *, first: bool) -> list[Verified]:
        stamps = await asyncio.to_thread(_bundles_in, self._folder or Path(), self._seen)
        fixed = {each.bundle for each in self._fixed}
        self._versions = {bundle: entry for bundle, entry in self._versions.items() if bundle in stamps}
        self._refused = {bundle: entry for bundle, entry in self._refused.items() if bundle in stamps.keys() | fixed}
        read: list[Verified] = []
        for bundle, stamp in stamps.items():
            if (first or self._seen.get(bundle) == stamp) and not self._knows(bundle, stamp):
                read += await self._verify(bundle, stamp)
        self._seen = stamps
        return read

    def _by_name(self) -> dict[str, list[Version]]:
        """Return the versions of each name: first those that are given, then those of the folder, in its order."""
        by_name: dict[str, list[Version]] = {}
        for version in (*self._fixed, *(self._versions[each] for each in self._seen if each in self._versions)):
            by_name.setdefault(version.name, []).append(version)
        return by_name

    async def _serve_all(self, *, first: bool) -> None:
        by_name = self._by_name()
        for name, versions in by_name.items():
            await self._serve(name, versions, first=first)
        for name, served in list(self._served.items()):
            # What a bundle was before it was damaged is served on.
            if name not in by_name and (served.bundle not in self._seen or served.bundle in self._versions):
                self._remove(name)

    def _knows(self, bundle: Path, stamp: Stamp) -> bool:
        read, refused = self._versions.get(bundle), self._refused.get(bundle)
        return (read is not None and read.stamp == stamp) or (refused is not None and refused[0] == stamp)

    async def _verify(self, bundle: Path, stamp: Stamp) -> list[Verified]:
        self._versions.pop(bundle, None)
        try:
            model = await self._verified(bundle)
            version = _version(bundle, stamp, model.certificate.name, model.certificate)
        except Exception as error:  # noqa: BLE001 - whatever a bundle does, it is refused, and no other
            # What was not to be had for a moment, as memory, is there at another look, and in other processes.
            passing = isinstance(error.__cause__ or error, OSError | MemoryError)
            self._refuse(bundle, () if passing else stamp, _describe(error))
            return []
        self._refused.pop(bundle, None)
        self._versions[bundle] = version
        return [model]

    async def _preferred(self, name: str, versions: Sequence[Version], *, strict: bool = False) -> list[Version]:
        """Return those that the name may be served from, the best first; none where the ledger does not say.

        strict: whether to raise LedgerError instead.
        """
        first = versions[0]
        by_id = {each.model_id: each for each in reversed(versions) if each.lineage == first.lineage}
        if len(by_id) == 1:
            return [first]
        try:
            promotions = await self._promoted(first.lineage)
        except LedgerError:
            if strict:
                raise
            return []
        ids, former = promotions.get(name, ()), self._promotions.get(first.lineage, {}).get(name, ())
        self._promotions[first.lineage] = promotions
        if ids != former:
            for each in by_id.values():  # the owner says it anew: so it is tried anew
                self._refused.pop(each.bundle, None)
            if ids and ids[0] not in by_id:
                log.error("%s was promoted to the model %s, whose bundle is not here", name, ids[0])
        return list(dict.fromkeys([*(by_id[each] for each in ids if each in by_id), first]))

    async def _serve(self, name: str, versions: Sequence[Version], *, first: bool) -> None:
        """Serve the version whose turn it is under this name."""
        self._models.versions[name] = tuple(each.model_id for each in versions if each.lineage == versions[0].lineage)
        preferred = await self._preferred(name, versions, strict=first and versions[0] in self._fixed)
        if not preferred:
            return
        for version in preferred:
            if await self._open(version, needed=first and version in self._fixed and version == preferred[-1]):
                break
        else:
            served = self._served.get(name)
            if served is not None and served.bundle not in {each.bundle for each in preferred}:
                # Processes that start now never had it.
                self._remove(name)
        served = self._served.get(name)
        for version in versions:
            if version not in preferred and version != served:
                self._stand_by(version, served or preferred[0])

    async def _open(self, version: Version, *, needed: bool) -> bool:
        """Serve a version; return whether it is, or whether all stays as it is for now.

        needed: whether to raise what it is refused with: the service cannot begin without it.
        """
        if self._served.get(version.name) == version:
            return True
        if self._refused.get(version.bundle, ((), ""))[0] == version.stamp:
            return False
        try:
            predictor = await self._opened(version, needed)
            if predictor.certificate.model_id != version.model_id:
                raise CannotServe("it was changed while it was read")
        except Exception as error:
            if needed:
                raise
            # What the ledger could not do may be done at the next look.
            passing = isinstance(error, LedgerError)
            self._refuse(version.bundle, () if passing else version.stamp, _describe(error))
            return passing
        self._refused.pop(version.bundle, None)
        self._models.add(predictor)
        self._served[version.name] = version
        return True

    def _remove(self, name: str) -> None:
        self._models.remove(name)
        self._models.versions.pop(name, None)
        del self._served[name]

    def _stand_by(self, version: Version, served: Version) -> None:
        """Say once why a bundle is not served whose name another one has."""
        if self._refused.get(version.bundle, ((), ""))[0] == version.stamp:
            return
        if served.lineage != version.lineage or served.model_id == version.model_id:
            where = "" if served in self._fixed else f" from {served.bundle}"
            self._refuse(version.bundle, (), f"a model called {version.name} is served already{where}")
            return
        text = f"stands by: 'dpserve models promote {version.name} {version.bundle}' serves it"
        if self._refused.get(version.bundle) != ((), text):
            log.info("%s %s", version.bundle, text)
        self._refused[version.bundle] = ((), text)

    def _refuse(self, bundle: Path, stamp: Stamp, reason: str) -> None:
        if self._refused.get(bundle, (stamp, ""))[1] != reason:
            log.error("%s is not served: %s", bundle, reason)
        self._refused[bundle] = (stamp, reason)


def _check_versions(one: Version, other: Version) -> None:
    """Raise CannotServe unless these, of one name, are two versions of a model."""
    if one.lineage != other.lineage:
        raise CannotServe(
            f"{one.bundle} and {other.bundle} would both be called {one.name}, and are of the lineages {one.lineage} "
            f"and {other.lineage}: a name stays with its lineage, whose keys and budgets clients have. Serve one of "
            "them under another name, as NAME=BUNDLE"
        )
    if one.model_id == other.model_id:
        raise CannotServe(f"{one.bundle} and {other.bundle} are the same model, {one.name}: name one of them")


def _version(bundle: Path, stamp: Stamp, name: str, certificate: ModelCertificate) -> Version:
    return Version(bundle, stamp, name, certificate.lineage, certificate.model_id)


def _describe(error: Exception) -> str:
    """Return why a bundle is refused: an error's own words where they are meant to be read."""
    return str(error) if isinstance(error, TrainingError | CannotServe | LedgerError | OSError) else kinds(error)
