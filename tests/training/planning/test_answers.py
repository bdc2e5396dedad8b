import json

import pytest

from dpserve.accounting.budgets import Accepts, Budget
from dpserve.accounting.losses import Cost
from dpserve.training.planning.answers import plan


def held(epsilon: float) -> dict[Accepts, Budget]:
    kinds: tuple[Accepts, ...] = ("gaussian", "any")
    return {kind: Budget.from_epsilon_delta(epsilon, 1e-6, kind) for kind in kinds}


@pytest.mark.parametrize("queries", [1, 7, 1000, 10**6])
def test_no_option_for_a_number_of_queries_exceeds_the_budget(queries: int) -> None:
    found = plan(held(2.0), classes=4, queries=queries)

    assert found.options
    for option in found.options:
        cost = Cost.parse(option.losses)
        budget = Budget.from_epsilon_delta(2.0, 1e-6, "gaussian" if cost.is_gaussian else "any")
        assert cost.picorho * queries <= budget.limit


def test_a_sensitivity_says_how_much_noise_is_drawn() -> None:
    found = plan(held(1.0), classes=10, queries=100, sensitivity=0.02)

    gaussian = next(option for option in found.options if option.mechanism == "gaussian")
    assert 1 <= gaussian.noise / (0.02 * gaussian.noise_multiplier) < 1.02  # rounding on the grid takes 1 %
    json.loads(found.model_dump_json())


def test_a_mechanism_that_refuses_its_price_is_unavailable_and_says_why() -> None:
    found = plan(held(1.0), classes=1000, queries=10**7, sensitivity=0.02)

    assert "laplace" not in [option.mechanism for option in found.options]
    assert "must be at least" in found.unavailable["laplace"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 1}, "classes must lie between 2 and 1024"),
        ({"classes": 4, "queries": 0}, "queries must lie between 1 and"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(held(1.0), **arguments)


def test_pure_accounts_are_considered_beside_the_others() -> None:
    both = held(0.5) | {"pure": Budget.pure(0.5)}
    found = plan(both, classes=4, queries=1)

    ways = {(option.mechanism, option.accepts): option for option in found.options}
    assert set(ways) == {("gaussian", "gaussian")} | {
        (name, accepts) for name in ("laplace", "selected-neuron", "label") for accepts in ("any", "pure")
    }
    for name in ("laplace", "selected-neuron", "label"):
        assert ways[name, "pure"].price == "epsilon:0.500000000000"
        assert Cost.parse(ways[name, "pure"].losses).picoepsilon <= both["pure"].limit
    alone = plan({"pure": Budget.pure(0.5)}, classes=4, queries=1)
    assert {option.accepts for option in alone.options} == {"pure"}
