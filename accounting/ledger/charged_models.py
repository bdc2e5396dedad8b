"""Which models a lineage's account has paid for, by its receipts."""

from dataclasses import dataclass, field, replace

from dpserve.accounting.currency import RHO, Currency
from dpserve.accounting.ledger.accounts import Accounts
from dpserve.accounting.ledger.receipts import Receipt
from dpserve.accounting.ledger.values import ChargedModel, LineageAccount


@dataclass
class ChargedModels:
    """The models of a lineage, by the receipts that were entered. currency: what the account counts."""

    currency: Currency = RHO
    _models: dict[tuple[str, str], ChargedModel] = field(default_factory=dict)

    def enter(self, receipt: Receipt) -> None:
        """Count a receipt."""
        of_this, time = (receipt.model, receipt.mechanism), receipt.time
        before = self._models.get(of_this) or ChargedModel(*of_this, 0, 0, time, time, receipt.terms.blocks)
        self._models[of_this] = replace(
            before,
            releases=before.releases + receipt.lineage_releases,
            spent=before.spent + receipt.total_in(self.currency, receipt.lineage_releases),
            first=min(before.first, time),
            last=max(before.last, time),
        )

    @property
    def listed(self) -> list[ChargedModel]:
        """The models, those that were charged first before others."""
        return sorted(self._models.values(), key=lambda each: (each.first, each.model, each.mechanism))


async def charged_models(ledger: Accounts, account: LineageAccount) -> list[ChargedModel]:
    """Return the models that an account has paid for, as far as it counts receipts; this reads all."""
    from dpserve.accounting.ledger.verification import all_receipts

    models = ChargedModels(account.budget.currency)
    async for receipt in all_receipts(ledger, account.lineage, account.newest_receipt):
        models.enter(receipt)
    return models.listed
