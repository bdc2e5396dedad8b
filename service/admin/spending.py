"""Who spent what over time, on which models: read once from the receipts, and from then on what is new."""

from dataclasses import dataclass, field

from dpserve.accounting.currency import RHO, Currency
from dpserve.accounting.ledger import Ledger, Receipt
from dpserve.accounting.ledger.charged_models import ChargedModels

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

    async def read_on(self, ledger: Ledger, lineage: str) -> bool:
        """Read the receipts that are new, or some of them; return whether that was all.

        A store that was restored may have other receipts under the same numbers: then it is read anew.
        """
        whole, clients, *_ = await ledger.snapshot(lineage)
        counted = {each.client: each.budget.currency for each in clients}
        self.lineage.currency = self.models.currency = whole.budget.currency
        for _ in range(_PAGES):
            after = self.newest.sequence - 1 if self.newest is not None else 0
            page = await ledger.receipts(lineage, after=after, count=_PAGE)
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
