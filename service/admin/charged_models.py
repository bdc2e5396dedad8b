"""The models that a lineage paid for: read once from its receipts, and from then on what is new."""

from dataclasses import dataclass, field

from dpserve.accounting.ledger import Ledger, Receipt
from dpserve.accounting.ledger.charged_models import ChargedModels

_PAGE = 1000
_PAGES = 20
"""Read for one reply at most: a ledger of millions of receipts is read in several."""


@dataclass
class ReadReceipts:
    """The models of a lineage, by the receipts that were read."""

    newest: Receipt | None = None
    models: ChargedModels = field(default_factory=ChargedModels)

    async def read_on(self, ledger: Ledger, lineage: str) -> bool:
        """Read the receipts that are new, or some of them; return whether that was all.

        A store that was restored may have other receipts under the same numbers: then it is read anew.
        """
        currency = (await ledger.lineage(lineage)).budget.currency
        self.models.currency = currency
        for _ in range(_PAGES):
            after = self.newest.sequence - 1 if self.newest is not None else 0
            page = await ledger.receipts(lineage, after=after, count=_PAGE)
            if self.newest is not None:
                if not page or page[0].hash != self.newest.hash:
                    self.newest, self.models = None, ChargedModels(currency)
                    continue
                page = page[1:]
            for receipt in page:
                self.models.enter(receipt)
            if page:
                self.newest = page[-1]
            if len(page) < _PAGE - 1:
                return True
        return False
