"""The models of one service, by name. All are charged to one ledger, those of one lineage to one account.

Promises: what is asked of a model is answered by it, whatever is served beside it, for each has a batcher of its own.
"""

import asyncio
from collections.abc import Iterable, Iterator

from dpserve.service.errors import UnknownModel
from dpserve.service.predictor import Predictor
from dpserve.training.inputs.column import quoted

VERSION = "1"
"""The only version of a model that a service has."""


class Models:
    """The models that are served now. Use it on one event loop."""

    def __init__(self, served: Iterable[Predictor], default: str | None = None) -> None:
        """Serve these. default: the model that is asked where none is named; None for the only one that is served."""
        self._default = default
        self.replace(served)

    def replace(self, served: Iterable[Predictor]) -> None:
        """Serve these from now on, and no others."""
        self._served = {predictor.name: predictor for predictor in served}
        for predictor in self._served.values():
            _ = predictor.public_model
        alone = next(iter(self._served.values())) if len(self._served) == 1 else None
        self.default: Predictor | None = alone if self._default is None else self._served[self._default]
        """The model that is asked where none is named."""

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
            raise UnknownModel(f"there is no model {quoted(name)} here; GET /models lists those that there are")
        raise UnknownModel("this service has no default model: ask /models/NAME/...; GET /models lists the names")

    @property
    def waiting_rows(self) -> dict[str, int]:
        """The rows that wait for each model, by its name."""
        return {name: predictor.waiting_rows for name, predictor in self._served.items()}

    def of_lineage(self, lineage: str) -> list[Predictor]:
        """Return the models whose answers this lineage pays for."""
        return [predictor for predictor in self if predictor.lineage == lineage]

    def names_by_id(self, lineage: str) -> dict[str, str]:
        """Return the served names of a lineage's models by their ids."""
        return {predictor.certificate.model_id: predictor.name for predictor in self.of_lineage(lineage)}

    async def check_ready(self) -> None:
        """Raise LedgerError unless the ledger can charge every lineage's account now."""
        by_lineage = {predictor.lineage: predictor for predictor in self._served.values()}
        await asyncio.gather(*(predictor.check_ready() for predictor in by_lineage.values()))

    async def drain(self) -> None:
        """Wait until every charge that was sent to the ledger is decided."""
        for predictor in self._served.values():
            await predictor.drain()
