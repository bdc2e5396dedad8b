"""Calls that every kind of store answers alike: one test of each, on a server of its own; all others are embedded."""

from collections.abc import Iterator

import pytest

from . import test_against_model as against_model
from . import test_blocks_against_model as blocks_against_model
from .conftest import BINARY, DURABLE, running_server
from .test_blocks import test_a_spent_block_refuses_and_models_without_it_go_on as test_blocks
from .test_concurrency import test_acts_of_many_at_once_are_all_done as test_acts
from .test_concurrency import test_all_together_spend_the_budget_exactly as test_concurrency
from .test_forgotten_lineages import test_of_a_charge_and_a_forgetting_at_once_one_is_done as test_forgetting
from .test_groups import test_any_account_of_the_chain_may_refuse_and_says_whose_it_is as test_groups
from .test_ledger import test_a_charge_is_paid_by_both_accounts_and_has_a_receipt as test_charges
from .test_ledger import test_a_key_is_checked_at_the_instant_of_the_charge as test_api_keys
from .test_ledger import test_a_refusal_names_the_account_and_the_amounts_and_changes_nothing as test_refusals
from .test_ledger import test_amounts_are_exact_up_to_the_largest as test_amounts
from .test_ledger import test_ten_thousand_rows_in_one_request as test_large_requests
from .test_purchases import test_a_lineage_pays_for_several_releases_at_once_or_for_none as test_purchases
from .test_pure_accounts import test_each_account_of_a_chain_counts_in_its_own_currency as test_currencies
from .test_quote import test_a_quote_says_what_the_charge_would as test_quotes

__all__ = [
    "test_acts",
    "test_amounts",
    "test_api_keys",
    "test_blocks",
    "test_charges",
    "test_concurrency",
    "test_currencies",
    "test_forgetting",
    "test_groups",
    "test_large_requests",
    "test_purchases",
    "test_quotes",
    "test_refusals",
]

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("external"), BINARY, **DURABLE) as url:
        yield url


def test_interleavings(store_url: str) -> None:
    against_model.run(store_url, 3)
    blocks_against_model.run(store_url, 3)
