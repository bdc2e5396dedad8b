"""The models of one service, by name. All are charged to one ledger, those of one lineage to one account.

Promises: what is asked of a model is answered by it, whatever is served beside it, for each has a batcher of its own;
a model that is replaced or removed answers the requests that had found it, and its memory is free after the last one.
"""

import asyncio
import weakref
from collections.abc import Callable, Iterable, Iterator
from weakref import WeakSet

from service.errors import NoModel, UnknownModel
from service.predictor import Predictor
from service.telemetry.logs import log

VERSION = "1"
"""The only version of a model that a service has."""


class Models:
    """The models that are served now. Use it on one event loop."""

    def __init__(
        self,
        served: Iterable[Predictor] = (),
        default: str | None = None,
        say: Callable[[str, str], None] = log.info,
    ) -> None:
        """Serve these. default: the model that is asked where none is named; None for the only one that is served.

        say: writes down what begins and ends.
        """
        self._say = say
        self._served: dict[str, Predictor] = {}
        self._leaving: WeakSet[Predictor] = WeakSet()
        self._default = default
        self.default: Predictor | None = None
        """The model that is asked where none is named."""
        self.versions: dict[str, tuple[str, ...]] = {}
        """The ids of the models that a name may be served from, where they are known."""
        for predictor in served:
            self.add(predictor)

    def __iter__(self) -> Iterator[Predictor]:
        """Return every model, by name."""
        return iter([self._served[name] for name in self.names])

    @property
    def names(self) -> list[str]:
        """The models' names, sorted."""
        return sorted(self._served)

    def named(self, name: str | None, version: str | None = None) -> Predictor:
        """Return the model of this name, the default one for None. Raises UnknownModel, also for another version."""
        if version not in (None, VERSION):
            raise UnknownModel(f"a model has the version {VERSION!r} alone")
        predictor = self.default if name is None else self._served.get(name)
        if predictor is not None:
            return predictor
        if name is not None:
            raise UnknownModel(f"there is no model {name!r} here; GET /models lists those that there are")
        raise UnknownModel("this service has no default model: ask /models/NAME/...; GET /models lists the names")

    @property
    def waiting_rows(self) -> dict[str, int]:
        """The rows that wait for each model, by its name."""
        return {name: predictor.waiting_rows for name, predictor in self._served.items()}

    def of_lineage(self, lineage: str) -> list[Predictor]:
        """Return the models whose answers this lineage pays for."""
        return [predictor for predictor in self if predictor.lineage == lineage]

    def names_by_id(self, lineage: str) -> dict[str, str]:
        """Return the served names of a lineage's models by their ids, those of versions that stand by included."""
        names = dict[str, str]()
        for predictor in self.of_lineage(lineage):
            standing_by = self.versions.get(predictor.name, ())
            names |= dict.fromkeys((*standing_by, predictor.certificate.model_id), predictor.name)
        return names

    def add(self, predictor: Predictor) -> None:
        """Serve a model from now on, in place of the one of its name."""
        name = predictor.name
        self.remove(name)
        self._served[name] = predictor
        self._settle_default()
        self._say("serving %s", name)

    def remove(self, name: str) -> None:
        """Serve a model no more. Requests that found it are answered."""
        predictor = self._served.pop(name, None)
        self._settle_default()
        if predictor is not None:
            self._leaving.add(predictor)
            weakref.finalize(predictor, self._say, "stopped serving %s", name).atexit = False

    def check_any(self) -> None:
        """Raise NoModel without a model."""
        if not self._served:
            raise NoModel("the service has no model yet")

    def _settle_default(self) -> None:
        if self._default is not None:
            self.default = self._served.get(self._default)
        else:
            self.default = next(iter(self._served.values())) if len(self._served) == 1 else None

    async def check_ready(self) -> None:
        """Raise NoModel without a model, or without the one that is to be the default.

        Raises LedgerError unless the ledger can charge every lineage's account now.
        """
        self.check_any()
        if self._default is not None and self._default not in self._served:
            raise NoModel(f"the default model, {self._default}, is not served")
        by_lineage = {predictor.lineage: predictor for predictor in self._served.values()}
        await asyncio.gather(*(predictor.check_ready() for predictor in by_lineage.values()))

    async def close(self) -> None:
        """Wait until every charge that was sent to the ledger is decided, and serve nothing any more."""
        served, self._served, self.default = self._served, {}, None
        for predictor in [*served.values(), *self._leaving]:
            await predictor.drain()
        for name in served:
            self._say("stopped serving %s", name)
