"""Who spent what over time, on which models: read once from the receipts, and from then on what is new."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from accounting.currency import RHO, Currency
from accounting.ledger import Ledger, Receipt
from accounting.ledger.charged_models import ChargedModels
from accounting.ledger.seals import sealed_sums
from accounting.ledger.values import ClientAccount, LineageAccount

_PAGE = 1000
_PAGES = 20
"""Read for one reply at most: a ledger of millions of receipts is read in several."""
_MOST_POINTS = 400


@dataclass
class Course:
    """The spending of one account over time: (seconds since the epoch, amount so far), oldest first.

    Amounts are in 1e-12 of `currency`, what the account counts.

    Of more points than `_MOST_POINTS` every other one is left out; the newest stays, so that the total is exact.
    """

    currency: Currency = RHO
    total: int = 0
    points: list[tuple[float, int]] = field(default_factory=list)

    def add(self, time: float, amount: int) -> None:
        """Count a charge."""
        self.total += amount
        self.points.append((time, self.total))
        if len(self.points) > _MOST_POINTS:
            self.points = self.points[::-2][::-1]

    @property
    def listed(self) -> list[tuple[float, float]]:
        """The points, in units of the currency."""
        return [(time, self.currency.value(total)) for time, total in self.points]


@dataclass
class Spending:
    """The spending of a lineage and of each client over time, and its models, by the receipts that were read."""

    newest: Receipt | None = None
    lineage: Course = field(default_factory=Course)
    clients: dict[str, Course] = field(default_factory=dict)
    models: ChargedModels = field(default_factory=ChargedModels)

    def _begin(self, whole: LineageAccount, clients: Sequence[ClientAccount]) -> None:
        """Begin with what was archived: its sums, at the time of its newest charge."""
        sealed = sealed_sums(whole)
        self.models.go_on(whole)
        if not sealed.models:
            return
        time = max(each.last for each in sealed.models)
        self.lineage.add(time, sealed.spent)
        for client in clients:
            if spent := sealed_sums(client, whole.archived).spent:
                self.clients[client.client] = Course(client.budget.currency)
                self.clients[client.client].add(time, spent)

    async def read_on(self, ledger: Ledger, lineage: str) -> bool:
        """Read the receipts that are new, or some of them; return whether that was all.

        A store that was restored may have other receipts under the same numbers: then it is read anew. Of receipts
        that were archived before they were read the sums are known.
        """
        whole, clients, *_ = await ledger.snapshot(lineage)
        counted = {each.client: each.budget.currency for each in clients}
        self.lineage.currency = self.models.currency = whole.budget.currency
        for _ in range(_PAGES):
            after = self.newest.sequence - 1 if self.newest is not None else whole.archived
            page = await ledger.receipts(lineage, after=after, count=_PAGE)
            if self.newest is None and not self.lineage.points:
                if page and page[0].sequence != after + 1:
                    return False  # it was archived meanwhile: the next look has its sums
                self._begin(whole, clients)
            if self.newest is not None:
                if not page or page[0].hash != self.newest.hash:
                    self.newest, self.lineage, self.clients = None, Course(whole.budget.currency), {}
                    self.models = ChargedModels(whole.budget.currency)
                    continue
                page = page[1:]
            for receipt in page:
                self.models.enter(receipt)
                own = self.lineage.currency
                self.lineage.add(receipt.time, receipt.total_in(own, receipt.lineage_releases))
                if receipt.client:
                    own = counted.get(receipt.client, RHO)
                    course = self.clients.setdefault(receipt.client, Course(own))
                    course.add(receipt.time, receipt.total_in(course.currency, receipt.releases))
            if page:
                self.newest = page[-1]
            if len(page) < _PAGE - 1:
                return True
        return False
