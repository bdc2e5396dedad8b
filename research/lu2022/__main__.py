"""`python -m research.lu2022`: rerun the paper on a data set. It holds no logic of its own."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table

from dpserve.commands.console import shares
from research.commands import program, run
from research.lu2022 import printed
from training.errors import extra

if TYPE_CHECKING:
    from research.lu2022.presentation import Comparison
    from research.lu2022.results import Accuracies, Plan

app = program()

_UNPROVEN = (
    "Algorithm 1 is unproven: with three or more classes no finite epsilon holds for it, and its sensitivities are no "
    "worst-case bounds. The epsilons are the claimed ones."
)


@app.command()
def rerun(
    dataset: Annotated[str, typer.Option(help=f"One of {', '.join(printed.ROWS)}.")],
    data_dir: Annotated[
        Path | None, typer.Option(envvar="DPSERVE_DATA_DIR", help="Where the data set's files are.")
    ] = None,
    bounds: Annotated[
        bool, typer.Option("--bounds", help="Only the closed forms: Table VI's row. Needs no data.")
    ] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Independent repeats; the paper has 10.")] = printed.REPEATS,
    epsilons: Annotated[str, typer.Option(help="Separated by commas; claimed, of one release.")] = ",".join(
        f"{epsilon:g}" for epsilon in printed.EPSILONS
    ),
    seed: Annotated[int, typer.Option(min=0, help="Everything follows from it.")] = 0,
    n: Annotated[int | None, typer.Option(min=1, help="Records of a training set, if not the paper's.")] = None,
    alpha: Annotated[float | None, typer.Option(help="The risk factor, if not the paper's.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of training; the paper has 100.")] = printed.EPOCHS,
    search_alpha: Annotated[
        bool, typer.Option("--search-alpha", help="Also search alpha as Section 5.3 does.")
    ] = False,
    rivals: Annotated[
        bool, typer.Option("--rivals", help="Also the certified head with each proven mechanism.")
    ] = False,
    dp_sgd: Annotated[
        int, typer.Option(min=0, metavar="REPEATS", help="Also DP-SGD, so many repeats; slow, needs the extra dpsgd.")
    ] = 0,
    attack: Annotated[
        bool, typer.Option("--attack/--no-attack", help="Also Priv_Leak, by shadow models on the records left over.")
    ] = True,
    out: Annotated[Path, typer.Option(help="Where CSV, PNG and finished pieces go.")] = Path("reproduction"),
    machine: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Lu et al. 2022: Table V's and VI's row of a data set, and the points of its two figures."""
    row = printed.row(dataset)
    if bounds:
        from research.lu2022 import presentation

        _show_bounds(row.dataset, presentation.closed_form(row), machine)
        return
    if data_dir is None:
        raise ValueError("name the directory of the data set's files with --data-dir or DPSERVE_DATA_DIR")
    from research.lu2022.results import Plan

    plan = Plan(dataset, repeats, _numbers(epsilons), seed, n=n, alpha=alpha, epochs=epochs)
    _rerun(plan, data_dir, out, machine, search_alpha=search_alpha, rivals=rivals, dp_sgd=dp_sgd, attack=attack)


def _rerun(
    plan: "Plan",
    data_dir: Path,
    out: Path,
    machine: bool,
    *,
    search_alpha: bool,
    rivals: bool,
    dp_sgd: int,
    attack: bool,
) -> None:
    with extra("torch", "training networks"):
        from research.lu2022 import experiment
        from research.lu2022.leakage import Attacks
    from audit.pieces import ResultStore
    from research.lu2022 import presentation
    from research.lu2022.samples import draw_samples

    store = ResultStore(out / "pieces")
    with shares(plan.dataset) as progress:
        progress("reading", 0.0)
        samples = draw_samples(plan, data_dir)
        attacks = Attacks(plan, samples, progress) if attack else None
        results = experiment.run(plan, samples, store, progress, attacks)
        if rivals:
            from research.lu2022 import rivals as proven

            more = proven.curves(plan, samples, store, results.baseline, progress, attacks)
            results = replace(results, curves=results.curves + more)
        if dp_sgd:
            from research.lu2022 import dpsgd_curves

            more = dpsgd_curves.curves(plan, samples, store, results.baseline, dp_sgd, progress, attacks)
            results = replace(results, curves=results.curves + more)
        search = experiment.search_alpha(plan, samples, store, progress) if search_alpha else None
    tables, figure = presentation.write_csv(results, out)
    plot = out / f"{plan.dataset}-accuracy-loss.png"
    presentation.write_plot(results, plot)
    if machine:
        content = presentation.as_dict(results)
        if search is not None:
            content["alpha_search"] = presentation.search_as_dict(*search)
        typer.echo(json.dumps(content, indent=1))
        return
    console = Console()
    console.print(f"{plan.dataset}: {results.source}; {plan.repeats} repeats of n = {plan.records}, seed {plan.seed}")
    console.print(_comparison_table("Table V", (*presentation.measured(results), *presentation.leakage(results))))
    console.print(_comparison_table("Table VI", presentation.closed_form(plan.printed_row)))
    points = presentation.points(results.curves)
    console.print(_points_table(points, "accuracy_loss", "spread", "Acc_Loss"))
    if results.leakage:
        console.print(_points_table(points, "privacy_leakage", "leakage_spread", "Priv_Leak"))
    if search is not None:
        console.print(_search_table(*search))
    console.print(_UNPROVEN, style="yellow")
    console.print(f"Written: {tables}, {figure}, {plot}")


def _show_bounds(dataset: str, rows: "Sequence[Comparison]", machine: bool) -> None:
    if machine:
        typer.echo(
            json.dumps({"dataset": dataset, "status": "unproven", "table_vi": [r.as_dict() for r in rows]}, indent=1)
        )
        return
    console = Console()
    console.print(_comparison_table(f"{dataset}: the published bounds (unproven)", rows))


def _comparison_table(title: str, rows: "Sequence[Comparison]") -> Table:
    from research.lu2022.presentation import number

    table = Table(
        "", "ours", "spread", "printed", "off by", "same digits", "in spreads", title=title, title_justify="left"
    )
    for row in rows:
        error, spreads = row.relative_error, row.spreads_off
        table.add_row(
            row.quantity,
            number(row.ours),
            number(row.spread),
            number(row.printed),
            "" if error is None else f"{error:+.2%}",
            {True: "yes", False: "no", None: ""}[row.same_digits],
            "" if spreads is None else f"{spreads:+.1f}",
        )
    return table


def _points_table(rows: "Sequence[dict[str, Any]]", figure: str, spread: str, title: str) -> Table:
    """One line of means for each mechanism, above one of spreads; a column for each epsilon."""
    rows = [row for row in rows if figure in row]
    epsilons = sorted({row["epsilon"] for row in rows})
    columns = [Column(f"{epsilon:g}", justify="right", no_wrap=True) for epsilon in epsilons]
    table = Table(
        "", *columns, title=f"{title}, mean and spread", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0)
    )
    cells = {
        (row["mechanism"], row["epsilon"]): f"{row[figure]:.3f}" + (f"\n{row[spread]:.3f}" if row[spread] else "")
        for row in rows
    }
    for mechanism, status in dict.fromkeys((row["mechanism"], row["status"]) for row in rows):
        table.add_row(f"{mechanism}\n({status})", *(cells.get((mechanism, epsilon), "") for epsilon in epsilons))
    return table


def _search_table(best: float, found: "Sequence[Accuracies]") -> Table:
    from research.lu2022.presentation import search_as_dict

    table = Table("alpha", "train", "test", title=f"alpha closest to cross-entropy: {best:g}", title_justify="left")
    for row in search_as_dict(best, found)["searched"]:
        table.add_row(f"{row['alpha']:g}", f"{row['train']:.4f}", f"{row['test']:.4f}")
    return table


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"numbers separated by commas are expected, not {text!r}") from None


if __name__ == "__main__":
    run(app)
