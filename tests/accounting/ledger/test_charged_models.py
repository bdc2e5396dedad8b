"""The models that a lineage paid for, which add up to its account."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dpserve.accounting.ledger import Ledger
from dpserve.accounting.ledger.charged_models import charged_models
from dpserve.accounting.ledger.receipts import charge_terms
from dpserve.accounting.losses import Cost, GaussianLoss

from .conftest import asking, budget, new_lineage, open_accounts

pytestmark = pytest.mark.anyio

COSTS = tuple(Cost((GaussianLoss(mu),)) for mu in (0.1, 0.3))
CHARGES = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from(("gaussian", "label")),
        st.sampled_from(COSTS),
        st.sampled_from(("ann", "bob")),
        st.sets(st.sampled_from("xyz"), min_size=1),
    ),
    max_size=8,
)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(charges=CHARGES)
async def test_the_models_add_up_to_what_the_account_spent(store_url: str, charges: list[tuple]) -> None:
    lineage = new_lineage()
    async with await Ledger.connect(store_url) as ledger:
        await open_accounts(ledger, lineage, budget(10**12), ann=budget(10**12), bob=budget(10**12))
        times: dict[tuple[str, str], list[float]] = {}
        for time, (model, mechanism, cost, client, rows) in enumerate(charges, 1):
            asked = asking(lineage, client, *(f"{model}{mechanism}{row}" for row in sorted(rows)), cost=cost)
            charge = await ledger.charge(replace(asked, terms=charge_terms(model, mechanism, cost), time=float(time)))
            if charge.receipts:
                times.setdefault((model, mechanism), []).append(float(time))
        account = await ledger.lineage(lineage)
        models = await charged_models(ledger, account)
    assert sum(each.spent for each in models) == account.spent
    assert sum(each.releases for each in models) == account.releases
    assert {(each.model, each.mechanism): (each.first, each.last) for each in models} == {
        named: (min(its), max(its)) for named, its in times.items()
    }
    assert [each.first for each in models] == sorted(each.first for each in models)
