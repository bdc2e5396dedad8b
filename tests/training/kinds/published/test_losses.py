"""Both readings of the convexified loss against their definitions, and their limits."""

import math

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from dpserve.training.kinds.published.train import batch_loss, record_losses  # noqa: E402

losses_of_a_batch = st.lists(st.floats(0, 20), min_size=1, max_size=12)


@given(losses_of_a_batch, st.floats(0.1, 10), st.integers(2, 100))
def test_both_readings_are_their_printed_formulas(values: list[float], alpha: float, classes: int) -> None:
    losses = torch.tensor(values, dtype=torch.float64)
    a = torch.tensor(alpha, dtype=torch.float64)
    powers = [math.exp(alpha * v) for v in values]
    first = math.log(sum(powers) / len(powers)) / alpha
    second = math.log(sum(classes - 1 + p for p in powers) / (classes * len(powers))) / alpha
    assert batch_loss(losses, classes, "per-record", a).item() == pytest.approx(first, abs=1e-12)
    assert batch_loss(losses, classes, "per-record-and-class", a).item() == pytest.approx(second, abs=1e-12)
    assert batch_loss(losses, classes, "cross-entropy", a).item() == pytest.approx(sum(values) / len(values))


def test_the_second_reading_is_the_mean_over_records_and_classes_of_the_elementwise_power() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 5, (7,), generator=generator)
    one_hot = torch.nn.functional.one_hot(y, 5).double()
    elementwise = torch.exp(-2.5 * one_hot * torch.log_softmax(z, -1))
    expected = elementwise.mean().log() / 2.5
    ours = batch_loss(record_losses(z, y), 5, "per-record-and-class", torch.tensor(2.5, dtype=torch.float64))
    assert ours.item() == pytest.approx(expected.item())


@pytest.mark.parametrize("reading", ["per-record", "per-record-and-class"])
def test_neither_overflows_where_the_powers_would(reading: str) -> None:
    losses = torch.tensor([500.0, 0.0, 3.0], requires_grad=True)
    value = batch_loss(losses, 30, reading, torch.tensor(10.0))
    value.backward()
    shares = {"per-record": 3, "per-record-and-class": 90}[reading]
    assert value.item() == pytest.approx(500 - math.log(shares) / 10, rel=1e-5)
    assert torch.isfinite(losses.grad).all()
    assert losses.grad[0].item() == pytest.approx(1.0)


def test_a_small_alpha_gives_the_mean_and_the_mean_over_classes() -> None:
    losses = torch.tensor([0.3, 2.0, 1.1], dtype=torch.float64)
    alpha = torch.tensor(1e-6, dtype=torch.float64)
    mean = losses.mean().item()
    assert batch_loss(losses, 4, "per-record", alpha).item() == pytest.approx(mean, rel=1e-4)
    assert batch_loss(losses, 4, "per-record-and-class", alpha).item() == pytest.approx(mean / 4, rel=1e-4)
