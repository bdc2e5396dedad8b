"""The models that a lineage paid for, as the owner's port reads them: page by page, and on from where it was."""

import pytest

from dpserve.accounting.ledger import Ledger
from dpserve.service.admin import charged_models
from dpserve.service.admin.charged_models import ReadReceipts
from tests.accounting.ledger.conftest import asking, open_accounts, releases

pytestmark = pytest.mark.anyio


def spent_by_model(read):
    return {each.model: each.releases for each in read.models.listed}


async def test_receipts_are_read_in_several_replies_and_anew_where_the_store_has_others(tmp_path, monkeypatch):
    monkeypatch.setattr(charged_models, "_PAGE", 3)
    monkeypatch.setattr(charged_models, "_PAGES", 2)
    read = ReadReceipts()
    async with Ledger.open(tmp_path / "store") as ledger, Ledger.open(tmp_path / "restored") as restored:
        for each, model in ((ledger, "first"), (restored, "other")):
            await open_accounts(each, "lineage", releases(20), ann=releases(20))
            for row in range(6):
                await each.charge(asking("lineage", "ann", str(row), model=model))
        replies = [(await read.read_on(ledger, "lineage"), spent_by_model(read)) for _ in range(2)]
        assert replies == [(False, {"first": 5}), (True, {"first": 6})]
        replies = [(await read.read_on(restored, "lineage"), spent_by_model(read)) for _ in range(2)]
        assert replies == [(False, {"other": 3}), (True, {"other": 6})]
