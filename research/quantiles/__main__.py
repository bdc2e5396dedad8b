"""`python -m research.quantiles`: bins beside cuts at noisy quantiles, a line for each seed, as CSV.

Each model is trained by `training.fit`, as `dpserve train` does, with noise that is new in every run.
"""

import csv
import time
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from accounting.budgets import Budget
from mechanisms.gaussian_vector import mu_for
from research.commands import program, run
from research.data.tables import TABLES, Table, read
from training.feature_choice import FeatureChoice
from training.features import rules
from training.fit import Request, fit
from training.kinds.cases import Quality, quality
from training.kinds.loading import load_model
from training.kinds.registry import kind_named
from training.planning.options import DELTA

app = program()

HEADER = ("set", "kind", "features", "epsilon", "bounds", "seed", "accuracy", "log_loss", "cpu_seconds")

FEATURES: dict[str, dict[str, Any]] = {
    "bins": {"features": "bins"},
    "even": {"features": "quantiles", "quantile_share": 0.0},
    "quantiles": {"features": "quantiles"},
}


@app.command()
def measure(
    dataset: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(TABLES)}; repeatable.")] = None,
    kinds: Annotated[str, typer.Option(help="Names of pay-once models, separated by commas.")] = "dpsgd",
    features: Annotated[str, typer.Option(help=f"Of {', '.join(FEATURES)}, separated by commas.")] = "bins,quantiles",
    epsilons: Annotated[str, typer.Option(help="Separated by commas, at delta = 1e-5.")] = "1",
    times: Annotated[str, typer.Option(help="How many times too wide bounds are, separated by commas.")] = "1",
    share: Annotated[float | None, typer.Option(help="Of the price, for the quantiles.")] = None,
    seeds: Annotated[int, typer.Option(min=1)] = 1,
    held_back: Annotated[bool, typer.Option(help="Ask about records that are held back from training.")] = False,
    data_dir: Annotated[Path, typer.Option(envvar="DPSERVE_DATA_DIR", help="Where the packages are.")] = Path(),
    out: Annotated[Path, typer.Option(help="The CSV; what it holds already is not measured again.")] = Path(
        "research/quantiles/measured.csv"
    ),
) -> None:
    """Train and ask, and write a line for every seed as soon as it is known."""
    done = set()
    if out.exists():
        with out.open(newline="", encoding="utf-8") as file:
            done = {tuple(row[name] for name in HEADER[:6]) for row in csv.DictReader(file)}
    else:
        out.write_text(",".join(HEADER) + "\n", "utf-8")
    for name in dataset or tuple(TABLES):
        table = read(name, data_dir)
        for kind, epsilon, wide, seed, chosen in product(
            kinds.split(","), epsilons.split(","), times.split(","), range(seeds), features.split(",")
        ):
            key = (name, kind, chosen, f"{float(epsilon):g}", f"{float(wide):g}", str(seed))
            if key in done:
                continue
            asked = dict(FEATURES[chosen])
            if share is not None and chosen == "quantiles":
                asked["quantile_share"] = share
            started = time.process_time()
            found = _measured(table, kind, asked, float(epsilon), float(wide), seed, held_back=held_back)
            seconds = time.process_time() - started
            line = (*key, f"{found.accuracy:.4f}", f"{found.log_loss:.4f}", f"{seconds:.1f}")
            with out.open("a", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerow(line)


def _measured(
    table: Table, kind: str, features: dict[str, Any], epsilon: float, times: float, seed: int, *, held_back: bool
) -> Quality:
    records, X, y = table.split(seed, held_back=held_back, times=times)
    whole = Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").limit
    options: dict[str, Any] = {"price": whole, "records_declared": len(records)}
    fields = kind_named(kind).fields
    if "lam" in fields and fields["lam"].is_needed:
        options["lam"] = rules.strong_convexity(mu_for(whole))
    request = Request(
        name="measured",
        lineage="measured",
        kind=kind,
        options={name: value for name, value in options.items() if name in fields},
        features=FeatureChoice.from_given(features),
    )
    with TemporaryDirectory() as folder:
        fitted = fit(records, request, Path(folder) / "model", state=Path(folder))
        model = load_model(fitted.folder)
        return quality(model.probabilities(X), y)


if __name__ == "__main__":
    run(app)
