"""`python -m research.sensitivity`: how far one record moves a model, measured on neighbours that are trained again.

A measurement is a lower bound of the sensitivity: above a claim it refutes the claim, below it proves nothing.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from dpserve.audit.distinguishing.neighbours import KINDS, neighbours, random_rows, remove_record, strongest_row
from dpserve.audit.reports import Picture, Report, ReportTable, number
from dpserve.commands.console import counting
from dpserve.commands.reporting import refuse
from dpserve.local_services import trained
from dpserve.training.errors import extra
from dpserve.training.inputs.digits import load_digits
from dpserve.training.inputs.records import Records
from dpserve.training.inputs.sums import OnCount
from dpserve.training.kinds.head.bundle import CertifiedHead
from dpserve.training.kinds.published import bounds
from dpserve.training.kinds.published.bundle import PublishedNetwork
from research.commands import ReportOptions, program, run

if TYPE_CHECKING:
    from matplotlib.axes import Axes


app = program()


@dataclass(frozen=True)
class Measurement:
    """One quantity. measured: the largest of the neighbours; claimed: the bound; source: where it comes from."""

    quantity: str
    source: str
    measured: float
    claimed: float

    @property
    def share(self) -> float:
        """Share of the claim that was reached; above 1 the claim is refuted."""
        return self.measured / self.claimed


def measure_certified_head(
    records: Records, train: Callable[[Records], CertifiedHead], seed: int, progress: OnCount = lambda _: None
) -> tuple[Measurement, ...]:
    """Return the weights' and the logits' movement for a natural, an outlying, a searched and a poisoned record.

    The claims are the certificate's (training.fitting.sensitivity). The logits' is at the strongest row that was found,
    for rows of feature norm 1, as is the claim.
    """
    weights = logits = claimed_weights = claimed_logits = 0.0
    for kind in KINDS:
        rng = np.random.default_rng(seed)
        pair = neighbours(kind, records, train, rng)
        head_in, head_out = pair.head_in, pair.head_out
        assert isinstance(head_in, CertifiedHead)
        assert isinstance(head_out, CertifiedHead)
        weights = max(weights, float(np.linalg.norm(head_in.weights - head_out.weights)))
        row = strongest_row(pair, records.declaration, records.X, rng)
        phi = head_in.features(row)
        moved = np.linalg.norm(head_in.logits(phi) - head_out.logits(phi)) / np.linalg.norm(phi)
        logits = max(logits, float(moved))
        claimed_weights = head_in.certificate.weight_sensitivity
        claimed_logits = head_in.certificate.logit_sensitivity_per_norm
        progress(1)
    return (
        Measurement("weights, L2", "certificate", weights, claimed_weights),
        Measurement("logits of a row of norm 1, L2", "certificate", logits, claimed_logits),
    )


def measure_published_network(
    records: Records,
    train: Callable[[Records], PublishedNetwork],
    count: int,
    seed: int,
    *,
    replaced: bool,
    progress: OnCount = lambda _: None,
) -> tuple[Measurement, ...]:
    """Return the movement of a published network's weights and logits over `count` random neighbours.

    replaced: a record is replaced by another one of the set, so that the order of the batches stays as it is and the
    record alone makes the difference; else it is left out, as the definition says, and the batches fall otherwise.
    The claims are Equations 15, 18 and 19 of Lu et al. 2022, with biases left aside, as there.
    """
    rng = np.random.default_rng(seed)
    whole = train(records)
    certificate = whole.certificate
    rows = np.concatenate([records.X, random_rows(records.declaration, len(records), rng)])
    exact = whole.logits(whole.features(rows))
    weights = single = neuron = 0.0
    for index in rng.choice(len(records), count, replace=False):
        other = train(_with_another(records, int(index), rng) if replaced else remove_record(records, int(index)))
        differences = [a - b for (a, _), (b, _) in zip(whole.layers, other.layers, strict=True)]
        weights = max(weights, math.sqrt(sum(float((difference**2).sum()) for difference in differences)))
        single = max(single, max(float(np.abs(difference).max()) for difference in differences))
        neuron = max(neuron, float(np.abs(exact - other.logits(other.features(rows))).max()))
        progress(1)
    claimed_weight = bounds.weight(
        certificate.claimed_lipschitz,
        bounds.strong_convexity(certificate.l2_regulariser),
        certificate.records,
        certificate.topology.weights,
    )
    return (
        Measurement("weights, L2", "Theorem 4 (Eq. 15)", weights, certificate.claimed_weight_sensitivity),
        Measurement("one weight", "Eq. 18", single, claimed_weight),
        Measurement("one neuron's logit", "Corollary 1 (Eq. 19)", neuron, certificate.claimed_neuron_sensitivity),
    )


def _with_another(records: Records, index: int, rng: np.random.Generator) -> Records:
    other = (index + int(rng.integers(1, len(records)))) % len(records)
    X, y = records.X.copy(), records.y.copy()
    X[index], y[index] = X[other], y[other]
    return Records(X, y, records.declaration, records.source)


def sensitivity_report(model: str, found: Mapping[str, tuple[Measurement, ...]]) -> Report:
    """Return the report of measured sensitivities, by how the neighbours were made."""
    beyond = sorted({one.quantity for some in found.values() for one in some if one.share > 1})
    bars = [(f"{one.quantity}\n{how}", one.share) for how, some in found.items() for one in some]

    def draw(axes: "Axes") -> None:
        axes.barh([name for name, _ in bars], [share for _, share in bars])
        axes.axvline(1.0, linestyle=":", color="black", label="claimed")

    return Report(
        title=f"Sensitivity of a {model} model of the digits, measured on neighbours that were trained again",
        finding=f"beyond what is claimed for {', '.join(beyond)}" if beyond else "within what is claimed",
        convicted=bool(beyond),
        content={how: [asdict(one) | {"share": one.share} for one in some] for how, some in found.items()},
        tables=tuple(
            ReportTable.from_rows(
                how,
                ("quantity", "claim's source", "measured", "claimed", "measured/claimed"),
                [(one.quantity, one.source, one.measured, one.claimed, number(one.share, 3)) for one in some],
            )
            for how, some in found.items()
        ),
        picture=Picture.with_axes(("measured, of the claim", ""), draw, (7.0, 1.2 + 0.7 * len(bars))),
        notes=("A measurement is a lower bound: below the claim it proves nothing.",),
    )


@app.command()
def measure(
    *,
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="certified, or published.")],
    lam: Annotated[float, typer.Option("--lam", help="certified: Lambda.")] = 10.0,
    again: Annotated[
        int, typer.Option("--neighbours", min=1, help="published: how many networks to train again, twice.")
    ] = 3,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Everything follows from it.")] = 0,
    shown: ReportOptions,
) -> None:
    """Train again without a record of the digits, and hold how far the model moved against what is claimed."""
    records = load_digits().train
    if model == "certified":
        refuse(context, "of a certified model", "again")
        with counting("training neighbours", len(KINDS)) as progress:
            moved = measure_certified_head(records, lambda some: trained(some, lam), seed, progress)
        shown.show(sensitivity_report(model, {"kinds of record": moved}))
    if model != "published":
        raise ValueError(f"a model is certified or published, not {model!r}")
    refuse(context, "of a published model", "lam")
    with extra("torch", "training networks"):
        from dpserve.training.kinds.published.train import train_published

    def train(some: Records) -> PublishedNetwork:
        return train_published(some, "digits", "audit")

    with counting("training networks", 2 * again) as progress:
        found = {
            how: measure_published_network(records, train, again, seed, replaced=replaced, progress=progress)
            for how, replaced in (("a record left out", False), ("a record replaced, same batches", True))
        }
    shown.show(sensitivity_report(model, found))


if __name__ == "__main__":
    run(app)
