"""The rival's noise under four analyses, and that Opacus trains with it."""

import pytest

torch = pytest.importorskip("torch")

from dpserve.training.kinds.published.bounds import Topology  # noqa: E402
from dpserve.training.kinds.published.train import logits  # noqa: E402
from research.lu2022.dpsgd_training import COMPOSITIONS, DpSgd, noise_multiplier, train_private  # noqa: E402

LOCATION = {"sampling_rate": 100 / 1200, "steps": 1200}
DELTA = 1 / 12_000


def test_the_moments_need_least_and_naive_composition_most() -> None:
    noise = {c: noise_multiplier(1.0, DELTA, c, **LOCATION) for c in COMPOSITIONS}
    assert noise["rdp"] < noise["zcdp"]
    assert noise["rdp"] < noise["advanced"] < noise["naive"]


def test_the_zcdp_noise_is_its_closed_form() -> None:
    """rho = T / (2 sigma^2); the conversion itself is tested where it lives."""
    from dpserve.accounting.conversions import zcdp_epsilon

    sigma = noise_multiplier(1.0, DELTA, "zcdp", **LOCATION)
    assert zcdp_epsilon(1200 / (2 * sigma**2), DELTA) <= 1.0
    assert zcdp_epsilon(1200 / (2 * (sigma * 0.9998) ** 2), DELTA) > 1.0


def test_what_cannot_be_reached_is_refused() -> None:
    with pytest.raises(ValueError, match="no noise multiplier"):
        noise_multiplier(1e-6, 1e-12, "naive", sampling_rate=1.0, steps=10**7)
    with pytest.raises(ValueError, match="compositions are naive"):
        noise_multiplier(1.0, DELTA, "pld", **LOCATION)  # type: ignore[arg-type]


def small() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(200, 4, generator=generator)
    return X, (X[:, 0] > 0.5).long()


@pytest.mark.filterwarnings("ignore")
def test_it_learns_with_little_noise_and_not_with_much_and_repeats() -> None:
    pytest.importorskip("opacus")
    X, y = small()
    topology = Topology(4, (8,), 2)
    quiet = DpSgd(topology, 0.05, epochs=30, batch_size=20, learning_rate=0.02, l2_regulariser=0.0)
    loud = DpSgd(topology, 1e4, epochs=3, batch_size=20, learning_rate=0.02)

    def accuracy(choices: DpSgd, seed: int = 3) -> float:
        return (logits(train_private(X, y, choices, seed), X).argmax(1) == y).float().mean().item()

    assert accuracy(quiet) > 0.9
    first, second = (train_private(X, y, loud, 5) for _ in range(2))
    assert all(
        torch.equal(a.weight, b.weight) and torch.equal(a.bias, b.bias) for a, b in zip(first, second, strict=True)
    )
    assert not torch.equal(first[0].weight, train_private(X, y, loud, 6)[0].weight)
