"""`python -m research.comparison first-answers`: when a pay-once model is better than a metered head.

Both get what public features give for a set, and one budget for all answers together. A head's noise grows with the
number of answers; a pay-once model's does not. A line for each set and budget: accuracy and log loss of the head for 1,
2, 5, 10 and 100 answers, of DP-SGD and class sums once, as ranges over seeds, and the least number of these from which
the better of the two has the smaller log loss on every seed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dpserve.accounting.budgets import Budget
from dpserve.training.kinds.cases import Heads, Quality
from dpserve.training.kinds.planned import UNLIMITED, Qualities, Trial
from dpserve.training.planning.options import DELTA, option_named
from research.comparison.cases import BENCHMARKS, Drawn

COUNTS = (1, 2, 5, 10, 100)
ONCE = ("dpsgd", "class-sums")


def first_answers(
    dataset: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(BENCHMARKS)}; repeatable.")] = None,
    data_dir: Annotated[Path, typer.Option(envvar="DPSERVE_DATA_DIR", help="Where the data sets' files are.")] = Path(),
    epsilons: Annotated[str, typer.Option(help="Separated by commas, at delta = 1e-5.")] = "1,4",
    seeds: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Print a table of each set and budget."""
    for name in dataset or ("adult-bins", "retail"):
        drawn = Drawn.read(name, data_dir)
        for epsilon in map(float, epsilons.split(",")):
            metered, once = [], []
            for seed in range(seeds):
                of_head, of_others = measured(drawn, epsilon, seed)
                metered.append(of_head)
                once.append(of_others)
            typer.echo(f"{name}, epsilon {epsilon:g}, {seeds} seeds: accuracy / log loss")
            for count in COUNTS:
                typer.echo(f"  head, {count:>3} answers  {span([each[str(count)] for each in metered])}")
            for option in ONCE:
                typer.echo(f"  {option:<17}  {span([each[option] for each in once])}")
            first = first_of(metered, once)
            typer.echo(f"  a pay-once model is better from {'none' if first is None else first} of these on")


def measured(drawn: Drawn, epsilon: float, seed: int) -> tuple[Qualities, Qualities]:
    """Return a head's qualities by number of answers, and those of pay-once models by name."""
    whole = Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").limit
    trial = Trial(Heads(drawn.case(seed)), whole, repr(epsilon), COUNTS)
    once = {option: option_named(option).qualities(trial)[UNLIMITED] for option in ONCE}
    return option_named("per-query").qualities(trial), once


def first_of(metered: Sequence[Qualities], once: Sequence[Qualities]) -> int | None:
    """Return the least number of answers from which the best pay-once model has the smaller log loss on each seed."""
    better = [
        all(_loss(own[str(count)]) > best(others) for own, others in zip(metered, once, strict=True))
        for count in COUNTS
    ]
    first = next((place for place in range(len(COUNTS)) if all(better[place:])), None)
    return None if first is None else COUNTS[first]


def best(qualities: Qualities) -> float:
    """Return the least log loss of these."""
    return min(map(_loss, qualities.values()))


def _loss(quality: Quality | None) -> float:
    """Return the log loss; infinity where the budget buys no such answer."""
    return float("inf") if quality is None or quality.log_loss is None else quality.log_loss


def span(qualities: Sequence[Quality | None]) -> str:
    """Return the ranges of accuracy and log loss, in words."""
    known = [each for each in qualities if each is not None]
    if not known:
        return "refused"
    ranges = [[each.accuracy for each in known], [_loss(each) for each in known]]
    return " / ".join(f"{min(each):.3f} to {max(each):.3f}" for each in ranges)
