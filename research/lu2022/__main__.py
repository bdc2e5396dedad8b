"""`python -m research.lu2022`: rerun the paper on a data set, and its tables that need none. No logic of its own."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpserve.audit.reports import ReportTable
from dpserve.commands.console import shares
from dpserve.training.devices import training_device
from dpserve.training.errors import extra
from research.commands import program, run
from research.lu2022 import printed
from research.printing import print_tables

if TYPE_CHECKING:
    from research.lu2022.presentation import Comparison
    from research.lu2022.results import Accuracies, Plan

app = program()
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
ALL = "all"

_UNPROVEN = (
    "Algorithm 1 is unproven: with three or more classes no finite epsilon holds for it, and its sensitivities are no "
    "worst-case bounds. The epsilons are the claimed ones."
)
_DIGITS = (
    "Ours are by the published formulas; research/lu2022/README.md names the choices that give the printed digits."
)


@app.callback(invoke_without_command=True)
def rerun(
    context: typer.Context,
    dataset: Annotated[
        str | None,
        typer.Option(help=f"One of {', '.join(printed.ROWS)}; or all, for the closed forms of all: Table VI."),
    ] = None,
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
    device: Annotated[
        str, typer.Option(help="Where networks are trained: cpu, cuda, or auto for cuda where there is one.")
    ] = "auto",
    machine: AsJson = False,
) -> None:
    """Lu et al. 2022: Table V's and VI's row of a data set, and the points of its two figures."""
    if context.invoked_subcommand is not None:
        return
    if dataset is None:
        raise ValueError(f"name a data set with --dataset: one of {', '.join(printed.ROWS)}, or {ALL}")
    from research.lu2022 import closed_forms, presentation

    if dataset == ALL:
        _print((closed_forms.table_vi(),), machine, f"{_UNPROVEN} {_DIGITS}")
        return
    row = printed.row(dataset)
    if bounds:
        _show_bounds(row.dataset, presentation.closed_form(row), machine)
        return
    if data_dir is None:
        raise ValueError("name the directory of the data set's files with --data-dir or DPSERVE_DATA_DIR")
    from research.lu2022.results import Plan

    where = training_device(device)
    plan = Plan(dataset, repeats, _numbers(epsilons), seed, n=n, alpha=alpha, epochs=epochs, device=where)
    _rerun(plan, data_dir, out, machine, search_alpha=search_alpha, rivals=rivals, dp_sgd=dp_sgd, attack=attack)


@app.command("table-1")
def table_1(*, machine: AsJson = False) -> None:
    """Table I: the bounds of the weights' sensitivity that the paper compares, with their values on every data set."""
    from research.lu2022 import closed_forms

    _print(closed_forms.table_i(), machine)


@app.command("figure-2")
def figure_2(*, machine: AsJson = False) -> None:
    """Figure 2 and Finding 1: the correlations of Table V's columns, from its printed rows, beside the printed ones."""
    from research.lu2022 import correlations

    _print(correlations.tables(), machine)


@app.command("finding-5")
def finding_5(*, machine: AsJson = False) -> None:
    """Finding 5: what the claimed sensitivities depend on, one number of a network's shape changed at a time."""
    from research.lu2022 import closed_forms

    _print(closed_forms.finding_5(), machine, _UNPROVEN, closed_forms.FINDING_5)


@app.command("convexity")
def convexity(
    *,
    epochs: Annotated[int, typer.Option(min=1, help="Of training, on the digits; the paper has 100.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Everything follows from it.")] = 0,
    machine: AsJson = False,
) -> None:
    """Show that the convexified loss is not convex: its value at a network's weights, their negatives and between."""
    with extra("torch", "training networks"):
        from research.lu2022 import convexity as argument
    from dpserve.training.inputs.digits import load_digits

    records = load_digits().train
    with shares("training") as progress:
        found = argument.midpoints(records, epochs=epochs, seed=seed, on_epoch=lambda done: progress("", done / epochs))
    _print((argument.table(found, len(records.declaration.classes)),), machine)


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
    from dpserve.audit.pieces import ResultStore
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
    shown = [
        _comparison_table("Table V", (*presentation.measured(results), *presentation.leakage(results))),
        _comparison_table("Table VI", presentation.closed_form(plan.printed_row)),
    ]
    points = presentation.points(results.curves)
    shown += _points_tables(points, "accuracy_loss", "spread", "Acc_Loss")
    if results.leakage:
        shown += _points_tables(points, "privacy_leakage", "leakage_spread", "Priv_Leak")
    if search is not None:
        shown.append(_search_table(*search))
    repeats = f"{plan.repeats} repeats of n = {plan.records}, seed {plan.seed}, on {plan.device}"
    heading = f"{plan.dataset}: {results.source}; {repeats}"
    print_tables(shown, before=(heading,), after=(_UNPROVEN, f"Written: {tables}, {figure}, {plot}"))


def _print(tables: Sequence[ReportTable], machine: bool, *after: str) -> None:
    if not machine:
        print_tables(tables, after=after)
        return
    content = [
        {"title": one.title, "note": one.note, "rows": [dict(zip(one.columns, row, strict=True)) for row in one.rows]}
        for one in tables
    ]
    typer.echo(json.dumps({"tables": content, "notes": after}, indent=1))


def _show_bounds(dataset: str, rows: "Sequence[Comparison]", machine: bool) -> None:
    if machine:
        typer.echo(
            json.dumps({"dataset": dataset, "status": "unproven", "table_vi": [r.as_dict() for r in rows]}, indent=1)
        )
        return
    print_tables((_comparison_table(f"{dataset}: the published bounds (unproven)", rows),))


def _comparison_table(title: str, rows: "Sequence[Comparison]") -> ReportTable:
    from research.lu2022.presentation import number

    columns = ("quantity", "ours", "spread", "printed", "off by", "same digits", "in spreads")
    cells = []
    for row in rows:
        error, spreads = row.relative_error, row.spreads_off
        cells.append(
            (
                row.quantity,
                number(row.ours),
                number(row.spread),
                number(row.printed),
                "" if error is None else f"{error:+.2%}",
                {True: "yes", False: "no", None: ""}[row.same_digits],
                "" if spreads is None else f"{spreads:+.1f}",
            )
        )
    return ReportTable(title, columns, tuple(cells))


def _points_tables(rows: "Sequence[dict[str, Any]]", figure: str, spread: str, title: str) -> list[ReportTable]:
    """Return the means, and the spreads where there are any: a line for each mechanism, a column for each epsilon."""
    rows = [row for row in rows if figure in row]
    epsilons = sorted({row["epsilon"] for row in rows})
    columns = ("mechanism", "status", *(f"{epsilon:g}" for epsilon in epsilons))
    mechanisms = dict.fromkeys((row["mechanism"], row["status"]) for row in rows)

    def table(named: str, what: str) -> ReportTable:
        cells = {(row["mechanism"], row["epsilon"]): f"{row[what]:.3f}" for row in rows if row[what] is not None}
        lines = ((name, status, *(cells.get((name, one), "") for one in epsilons)) for name, status in mechanisms)
        return ReportTable(f"{title} by epsilon, {named}", columns, tuple(lines))

    spreads = [table("standard deviation over repeats", spread)] if any(row[spread] is not None for row in rows) else []
    return [table("mean", figure), *spreads]


def _search_table(best: float, found: "Sequence[Accuracies]") -> ReportTable:
    from research.lu2022.presentation import search_as_dict

    rows = [
        (f"{row['alpha']:g}", f"{row['train']:.4f}", f"{row['test']:.4f}")
        for row in search_as_dict(best, found)["searched"]
    ]
    return ReportTable(f"alpha closest to cross-entropy: {best:g}", ("alpha", "train", "test"), tuple(rows))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"numbers separated by commas are expected, not {text!r}") from None


if __name__ == "__main__":
    run(app)
