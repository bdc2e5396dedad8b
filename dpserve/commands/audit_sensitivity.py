"""What `dpserve audit sensitivity` does."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from audit.distinguishing.neighbours import KINDS
from audit.distinguishing.sensitivity import Measurement, of_certified_head, of_published_network
from audit.reports import Picture, Report, Table, number, picture
from dpserve.commands.audit_service import trained
from dpserve.commands.console import counting
from training.data.digits import load_digits
from training.data.records import Records
from training.published.bundle import PublishedNetwork

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def audit_sensitivity(model: str, lam: float, count: int, seed: int) -> Report:
    """Return the report. Raises ValueError for a model of another kind."""
    if model == "certified":
        found = {"three kinds of record": _certified(lam, seed)}
    elif model == "published":
        found = _published(count, seed)
    else:
        raise ValueError(f"a model is certified or published, not {model!r}")
    beyond = sorted({one.quantity for some in found.values() for one in some if one.share > 1})
    return Report(
        title=f"Sensitivity of a {model} model of the digits, measured on neighbours that were trained again",
        verdict=f"Convicted: beyond what is claimed for {', '.join(beyond)}." if beyond else "Within what is claimed.",
        convicted=bool(beyond),
        content={how: [asdict(one) | {"share": one.share} for one in some] for how, some in found.items()},
        tables=tuple(_table(how, some) for how, some in found.items()),
        pictures=(_shares(found),),
        notes=("A measurement is a lower bound: below the claim it proves nothing.",),
    )


def _certified(lam: float, seed: int) -> tuple[Measurement, ...]:
    with counting("training neighbours", len(KINDS)) as progress:
        return of_certified_head(load_digits().train, lambda records: trained(records, lam), seed, progress)


def _published(count: int, seed: int) -> dict[str, tuple[Measurement, ...]]:
    from training.published.train import train_published

    def train(records: Records) -> PublishedNetwork:
        return train_published(records, "digits", "audit")

    records = load_digits().train
    with counting("training networks", 2 * count) as progress:
        return {
            what: of_published_network(records, train, count, seed, replaced=replaced, progress=progress)
            for what, replaced in (("a record left out", False), ("a record replaced, same batches", True))
        }


def _shares(found: Mapping[str, tuple[Measurement, ...]]) -> Picture:
    bars = [(f"{one.quantity}\n{how}", one.share) for how, some in found.items() for one in some]

    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        axes.barh([name for name, _ in bars], [share for _, share in bars])
        axes.axvline(1.0, linestyle=":", color="black", label="claimed")
        axes.set_xlabel("measured, of the claim")
        axes.legend()

    return picture("Sensitivities", "What lies beyond 1 refutes its claim.", draw, inches=(7.0, 1.2 + 0.7 * len(bars)))


def _table(how: str, measurements: tuple[Measurement, ...]) -> Table:
    return Table(
        how,
        ("quantity", "claim's source", "measured", "claimed", "measured/claimed"),
        tuple(
            (one.quantity, one.source, number(one.measured), number(one.claimed), number(one.share, 3))
            for one in measurements
        ),
    )
