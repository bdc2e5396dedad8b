"""The stack against the loop it replaces: each model as a plain module with its own optimiser."""

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from dpserve.training.kinds.published.bounds import (  # noqa: E402
    OBJECTIVES,
    Objective,
    PublishedRecipe,
    Topology,
)
from dpserve.training.kinds.published.train import (  # noqa: E402  # noqa: E402  # noqa: E402
    Assignment,
    batch_loss,
    initial_parameters,
    logits,
    one_model,
    record_losses,
    stacked_logits,
    train_stack,
)

N, N_OWN, FEATURES, CLASSES = 60, 30, 7, 3


def pool() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    X = torch.rand(N, FEATURES, generator=generator)
    return X, torch.randint(0, CLASSES, (N,), generator=generator)


def assignment(models: int) -> Assignment:
    generator = torch.Generator().manual_seed(8)
    members = torch.stack([torch.randperm(N, generator=generator)[:N_OWN] for _ in range(models)])
    return Assignment(members, tuple(range(100, 100 + models)), tuple(1.0 + m for m in range(models)))


def trained_in_a_loop(given: Assignment, recipe: PublishedRecipe, model: int) -> torch.nn.Sequential:
    """The same training written as one would for a single model, with the penalty in the loss."""
    X, y = pool()
    widths = recipe.topology.widths
    modules: list[torch.nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        modules += [
            torch.nn.Linear(fan_in, fan_out),
            torch.nn.Tanh() if recipe.activation == "tanh" else torch.nn.Sigmoid(),
        ]
    net = torch.nn.Sequential(*modules[:-1])
    linear = [m for m in net if isinstance(m, torch.nn.Linear)]
    first = one_model(initial_parameters(recipe.topology, given.seeds), model)
    with torch.no_grad():
        for module, layer in zip(linear, first, strict=True):
            module.weight.copy_(layer.weight.T)
            module.bias.copy_(layer.bias)
    optimiser = torch.optim.Adam(net.parameters(), lr=recipe.learning_rate, eps=1e-7)
    order = torch.Generator().manual_seed(given.seeds[model] + 1)
    for _ in range(recipe.epochs):
        rows = given.members[model][torch.randperm(N_OWN, generator=order)]
        for batch in rows.split(recipe.batch_size):
            optimiser.zero_grad()
            loss = batch_loss(
                record_losses(net(X[batch]), y[batch]), CLASSES, recipe.objective, torch.tensor(given.alphas[model])
            )
            (loss + recipe.l2_regulariser * sum(m.weight.square().sum() for m in linear)).backward()
            optimiser.step()
    return net


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("hidden", "activation"), [((5,), "tanh"), ((6, 4), "sigmoid")])
def test_a_stack_trains_what_a_loop_over_models_trains(
    objective: Objective, hidden: tuple[int, ...], activation: str
) -> None:
    recipe = PublishedRecipe(Topology(FEATURES, hidden, CLASSES), objective, 4, 8, 0.01, 0.01, activation)
    given = assignment(3)
    X, y = pool()
    rows = torch.arange(N).repeat(3, 1)
    ours = stacked_logits(train_stack(X, y, given, recipe), X, rows, recipe.activation, block=17)
    for model in range(3):
        theirs = trained_in_a_loop(given, recipe, model)(X).detach()
        torch.testing.assert_close(ours[model], theirs, rtol=1e-3, atol=1e-4)


def test_a_model_does_not_depend_on_its_company() -> None:
    recipe = PublishedRecipe(Topology(FEATURES, (5,), CLASSES), "per-record", 3, 8)
    given, (X, y) = assignment(4), pool()
    together = train_stack(X, y, given, recipe)
    alone = train_stack(X, y, Assignment(given.members[2:3], given.seeds[2:3], given.alphas[2:3]), recipe)
    for a, b in zip(one_model(together, 2), one_model(alone, 0), strict=True):
        torch.testing.assert_close(a.weight, b.weight, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(a.bias, b.bias, rtol=1e-4, atol=1e-5)


def test_training_is_deterministic_and_reports_every_epoch() -> None:
    recipe = PublishedRecipe(Topology(FEATURES, (5,), CLASSES), "cross-entropy", 3, 8)
    X, y = pool()
    told: list[int] = []
    first = train_stack(X, y, assignment(2), recipe, on_epoch=told.append)
    second = train_stack(X, y, assignment(2), recipe)
    assert told == [1, 2, 3]
    assert all(
        torch.equal(a.weight, b.weight) and torch.equal(a.bias, b.bias) for a, b in zip(first, second, strict=True)
    )


def test_first_weights_are_glorot_uniform_and_their_own() -> None:
    topology = Topology(200, (100,), 4)
    one, other = (one_model(initial_parameters(topology, (3, 9)), m) for m in (0, 1))
    limit = (6 / 300) ** 0.5
    assert one[0].weight.abs().max() <= limit
    assert one[0].weight.std().item() == pytest.approx(limit / 3**0.5, rel=0.02)
    assert not torch.equal(one[0].weight, other[0].weight)
    assert torch.equal(one[0].weight, initial_parameters(topology, (3,))[0].weight[0])
    assert all((layer.bias == 0).all() for layer in one)
    assert logits(one, torch.zeros(5, 200)).abs().max() == 0


def test_invalid_arguments_are_refused() -> None:
    topology = Topology(2, (2,), 2)
    with pytest.raises(ValueError, match="at least 1"):
        PublishedRecipe(topology, "per-record", epochs=0)
    with pytest.raises(ValueError, match="learning rate"):
        PublishedRecipe(topology, "per-record", learning_rate=0)
    with pytest.raises(ValueError, match="one seed and one alpha"):
        Assignment(torch.zeros(2, 3, dtype=torch.long), (1,), (1.0, 1.0))
    with pytest.raises(ValueError, match="alpha must be positive"):
        Assignment(torch.zeros(1, 3, dtype=torch.long), (1,), (0.0,))
