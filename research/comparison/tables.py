"""Tables in Markdown, made from the CSV's cells and from nothing else."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import product
from statistics import fmean

from dpserve.accounting.budgets import Budget
from dpserve.training.kinds.planned import UNLIMITED
from dpserve.training.planning.options import DELTA
from dpserve.training.planning.recommendation import recommend_by_rule
from research.comparison.cases import APART, NUMBERS, SUMMARISED, TABLE_FEW, UNSEEN
from research.comparison.options import BY_HAND, COUNTS, OPTIONS, RIVALS
from research.comparison.results import Cell, Cells

SEEDS = 5
NOT_MEASURED = "-"
_NOT_PRIVATE = "boosted"
_CLOSE = 0.03
_RIVALS = tuple(dict.fromkeys(RIVALS.values()))


def of_cells(cells: Cells, datasets: Sequence[str], options: Sequence[str], epsilons: Sequence[float]) -> Iterator[str]:
    """Give a line for each cell of these."""
    yield from _header("set", "option", "epsilon", "seeds", "accuracy (lowest, highest)", "log loss")
    for cell in sorted(cells.values(), key=lambda each: (each.dataset, each.option, each.epsilon)):
        if cell.dataset in datasets and cell.option in options and cell.epsilon in epsilons and cell.mean is not None:
            right = [each.accuracy for each in cell.known]
            ends = f" ({min(right):.3f}, {max(right):.3f})" if len(right) > 1 else ""
            loss = "" if cell.log_loss is None else f"{cell.log_loss:.3f}"
            asked = "" if cell.queries == UNLIMITED else f", {cell.queries} answers"
            named = (cell.dataset, cell.option + asked, f"{cell.epsilon:g}", str(len(cell.figures)))
            yield _row(*named, f"{cell.mean:.3f}{ends}", loss)


def summary(cells: Cells) -> Iterator[str]:
    """Give every benchmark at (1, DELTA): a line for each option, at each of `COUNTS` where each answer is paid for."""
    yield from _header("option", *SUMMARISED)
    for name, option in OPTIONS.items():
        counts = tuple(map(str, COUNTS)) if option.pays == "each answer" else (UNLIMITED,)
        found = [[cells.get((dataset, name, 1.0, count)) for count in counts] for dataset in SUMMARISED]
        if name not in RIVALS and any(cell for each in found for cell in each):
            title = option.title + " (unproven)" * (option.status == "unproven")
            yield _row(title, *(" / ".join(map(_mean, each)) for each in found))


def beside_best(cells: Cells) -> Iterator[str]:
    """Give what the rule takes on tables that no rule was found on, beside the option of the least log loss there.

    The best is chosen after the fact on the rows that it is judged on: noise makes the least of several look better
    than it is.
    """
    yield from _header("table (records, classes)", "epsilon", "by rule", "best by hand", "regret")
    regrets = []
    for name in APART:
        n, classes = NUMBERS[name]
        for epsilon in (1.0, 4.0):
            known = _cells_by_option(cells, name, epsilon)
            taken = known[_default_option(name, epsilon)]
            best = min(known.values(), key=_log_loss)
            regrets.append(_regret(taken, best))
            named = (f"{name} ({n:,}, {classes})", f"{epsilon:g}")
            yield _row(*named, taken.reached, f"{best.option} {best.log_loss:.3f}", f"{regrets[-1]:.3f}")
    yield ""
    yield _regrets(regrets)


def beside_rivals(cells: Cells) -> Iterator[str]:
    """Give accuracy and log loss of ours and of each rival on at most so many records; the least log loss is bold.

    A rival that needs a number which it has no rule for has the one of the least log loss. Beside them are
    scikit-learn's boosted trees, without privacy.
    """
    yield from _header("set (records, seeds)", "epsilon", "without privacy", "dpserve", *_RIVALS)
    first, lines = 0, 0
    for dataset in TABLE_FEW:
        for epsilon in (1.0, 4.0):
            known = _cells_by_option(cells, dataset, epsilon)
            ours = [each for each in known.values() if each.option not in RIVALS and each.option != _NOT_PRIVATE]
            if not ours:
                continue
            found = [_least(ours), *_best_of_rivals(known.values())]
            least = _least(each for each in found if each is not None)
            seeds = max(len(each.figures) for each in ours)
            name = f"{dataset.rpartition('-')[0]} ({NUMBERS[dataset][0]:,}, {seeds})"
            words = (_bold(each, least, "not offered") for each in found)
            yield _row(name, f"{epsilon:g}", _without_privacy(cells, dataset), *words)
            first, lines = first + (least is found[0]), lines + 1
    yield ""
    yield f"dpserve has the least log loss in {first} of {lines} lines."


def unseen_tables(cells: Cells) -> Iterator[str]:
    """Give the rule's option on tables that nobody has looked at for a rule, beside the best by hand and rivals.

    A figure is accuracy/log loss; the least log loss of the rule's option and the rivals is bold. The best by hand is
    chosen after the fact, and a rival as in `beside_rivals`: both look better than they are. A line needs the figure
    of the rule's option.
    """
    size = "table (records, classes)"
    yield from _header(size, "epsilon", "by rule", "best by hand", "regret", *_RIVALS, "without privacy")
    defaults: dict[tuple[str, float], Cell] = {}
    best: dict[tuple[str, float], Cell] = {}
    first = 0
    for name, epsilon in product(UNSEEN, (0.5, 1.0, 4.0)):
        known = _cells_by_option(cells, name, epsilon)
        ours = known.get(_default_option(name, epsilon))
        if ours is None:
            continue
        hand = min([ours, *(known[each] for each in BY_HAND if each in known)], key=_log_loss)
        defaults[name, epsilon], best[name, epsilon] = ours, hand
        theirs = _best_of_rivals(known.values())
        least = _least(each for each in (ours, *theirs) if each is not None)
        first += least is ours
        n, classes = NUMBERS[name]
        words = (_bold(ours, least), f"{hand.option} {hand.log_loss:.3f}", f"{_regret(ours, hand):.3f}")
        others = (*(_bold(each, least) for each in theirs), _without_privacy(cells, name))
        yield _row(f"{name} ({n:,}, {classes})", f"{epsilon:g}", *words, *others)
    if defaults:
        yield ""
        yield _regrets([_regret(defaults[place], best[place]) for place in defaults])
        yield f"The rule's option has the least log loss of the private ones in {first} of {len(defaults)} lines."
    names = [name for name in UNSEEN if (name, 1.0) in defaults and (name, 4.0) in defaults]
    if names:
        falls = [fmean(_regret(each[name, 1.0], each[name, 4.0]) for name in names) for each in (defaults, best)]
        yield f"The mean log loss falls by {falls[0]:.4f} from epsilon 1 to 4 by rule, and by {falls[1]:.4f} by hand."


def _regret(cell: Cell, better: Cell) -> float:
    return _log_loss(cell) - _log_loss(better)


def _regrets(regrets: Sequence[float]) -> str:
    above = sum(each > _CLOSE for each in regrets)
    return f"Mean regret {fmean(regrets):.4f}, largest {max(regrets):.3f}, above {_CLOSE}: {above} of {len(regrets)}."


def _best_of_rivals(known: Collection[Cell]) -> list[Cell | None]:
    """Return each rival's cell of the least log loss, None where it has none."""
    return [_least(each for each in known if RIVALS.get(each.option) == rival) for rival in _RIVALS]


def _without_privacy(cells: Cells, name: str) -> str:
    beside = cells.get((name, _NOT_PRIVATE, 1.0, UNLIMITED))
    return NOT_MEASURED if beside is None else beside.reached


def _bold(cell: Cell | None, least: Cell | None, absent: str = NOT_MEASURED) -> str:
    if cell is None:
        return absent
    return f"**{cell.reached}**" if cell is least else cell.reached


def _cells_by_option(cells: Cells, name: str, epsilon: float) -> dict[str, Cell]:
    """Return the cells of a set at an epsilon that have a log loss, by option."""
    here = (each for each in cells.values() if (each.dataset, each.epsilon) == (name, epsilon))
    return {each.option: each for each in here if each.log_loss is not None}


def _default_option(name: str, epsilon: float) -> str:
    n, classes = NUMBERS[name]
    whole = Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").limit
    return recommend_by_rule(n, classes, whole, "table").option


def _least(cells: Iterable[Cell]) -> Cell | None:
    return min(cells, key=_log_loss, default=None)


def _log_loss(cell: Cell) -> float:
    return float("inf") if cell.log_loss is None else cell.log_loss


def _header(*names: str) -> Iterator[str]:
    yield _row(*names)
    yield "|---" * len(names) + "|"


def _row(*words: str) -> str:
    return f"| {' | '.join(words)} |"


def _mean(cell: Cell | None) -> str:
    if cell is None:
        return NOT_MEASURED
    if cell.mean is None:
        return "refused"
    loss = "" if cell.queries != UNLIMITED or cell.log_loss is None else f", {cell.log_loss:.2f}"
    few = f" ({len(cell.figures)})" if len(cell.figures) < SEEDS else ""
    return f"{cell.mean:.3f}{loss}{few}"
