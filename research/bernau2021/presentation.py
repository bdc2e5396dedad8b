"""The adversary's results, as a report beside Table 2 of Bernau et al. 2021."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from dpserve.accounting.domains import require_between
from dpserve.accounting.identifiability import gaussian_advantage
from dpserve.audit.estimators import Errors, confidence_of_each, gdp_of_errors
from dpserve.audit.reports import Picture, Report, ReportTable, interval, number
from research.bernau2021.beliefs import Games, Identifiability, identifiability_of, published_gaussian_advantage
from research.bernau2021.experiments import Found, Setting, choices_of, printed
from research.bernau2021.games import Neighbours, Sensitivity
from research.bernau2021.printed import BELIEF, EPSILON

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = tuple[Sensitivity, Neighbours]

_JUDGED: Kind = ("global", "unbounded")
"""The games whose noise gives the guarantee that is claimed: the only ones that can refute it."""


def report(setting: Setting, found: Mapping[Kind, Found], source: str, conviction_confidence: float) -> Report:
    """Return the report. Only games with global sensitivity and a record added or removed can refute the guarantee.

    Errors at even odds, a threshold fixed in advance, bound mu exactly (Clopper and Pearson).
    """
    said = {kind: identifiability_of(one.games, setting.delta, BELIEF) for kind, one in found.items()}
    mu = choices_of(setting, "global").mu
    convicted = _mu_bound(found[_JUDGED].games, conviction_confidence) > mu
    judged = said[_JUDGED]
    return Report(
        title=f"The adversary who knows all but one record, on {setting.dataset}, beside Bernau et al. 2021, Table 2",
        finding=f"with global sensitivity and a record added or removed "
        f"the advantage in {judged.games} games is {number(judged.advantage, 3)} "
        f"(95 %: {interval(*judged.advantage_interval)}), and {number(gaussian_advantage(mu), 3)} is the most that the "
        "noise allows",
        convicted=convicted,
        content={
            "setting": asdict(setting),
            "source": source,
            "epsilon": EPSILON,
            "mu": mu,
            "games": {f"{sensitivity} {neighbours}": asdict(one) for (sensitivity, neighbours), one in said.items()},
        },
        tables=(_advantages(setting, said, mu), _epsilons(setting, said), _models(found), _sensitivities(found)),
        picture=_beliefs(found),
        warnings=(
            "Noise scaled to the local sensitivity is the paper's: it gives no differential privacy.",
            "Bounded neighbours (a record replaced) are the paper's: neighbouring here is a record added or removed.",
        ),
        notes=(f"{source}; dataset sensitivity by {setting.measure}; full batches, belief bound {BELIEF:g}.",),
    )


def _mu_bound(games: Games, confidence: float) -> float:
    said_first = games.log_odds > 0
    errors = Errors(
        float((said_first & ~games.first).sum()),
        float((~games.first).sum()),
        float((~said_first & games.first).sum()),
        float(games.first.sum()),
    )
    return gdp_of_errors(errors, confidence)


def _advantages(setting: Setting, said: Mapping[Kind, Identifiability], mu: float) -> ReportTable:
    rows = []
    for kind, one in said.items():
        paper = printed(setting, kind)
        rows.append(
            (
                *kind,
                str(one.games),
                number(one.advantage, 3),
                interval(*one.advantage_interval),
                "-" if paper is None else f"{paper[0]:g}",
                number(one.excess, 3),
                "-" if paper is None else f"{paper[1]:g}",
            )
        )
    note = (
        f"delta = {setting.delta:g}; the bound of the advantage is {number(gaussian_advantage(mu), 3)}, and "
        f"{number(published_gaussian_advantage(EPSILON, setting.delta), 3)} as the paper states it. "
        + (f"Printed for {setting.printed_as}." if setting.printed_as else "")
    )
    columns = (
        "sensitivity",
        "neighbours",
        "games",
        "advantage",
        "95 %",
        "advantage, printed",
        "delta'",
        "delta', printed",
    )
    return ReportTable("Advantage, and how often a belief exceeded its bound", columns, tuple(rows), note)


def _epsilons(setting: Setting, said: Mapping[Kind, Identifiability]) -> ReportTable:
    rows = tuple(
        (
            *kind,
            number(one.epsilon_of_sensitivity, 3),
            number(one.epsilon_of_belief, 3),
            number(one.epsilon_of_advantage, 3),
            number(one.exact_epsilon_of_sensitivity, 3),
            number(one.exact_epsilon_of_advantage, 3),
            number(one.epsilon_bound, 3),
        )
        for kind, one in said.items()
    )
    columns = (
        "sensitivity",
        "neighbours",
        "of sensitivity",
        "of belief",
        "of advantage",
        "sensitivity, exact",
        "advantage, exact",
        "bound, 95 %",
    )
    note = "The first three are the paper's estimates (Section 5.3), no bounds; the last is one, f-DP (CP)."
    return ReportTable(f"epsilon' where {EPSILON:g} was asked for at delta = {setting.delta:g}", columns, rows, note)


def _models(found: Mapping[Kind, Found]) -> ReportTable:
    """Figure 6 (d) and the membership adversary of Figures 7 (d) to 9 (d)."""
    rows = tuple(
        (
            *kind,
            number(float(one.membership.mean()), 3),
            number(float(one.membership.std()), 3),
            number(2 * float(np.mean(one.games.beliefs_in_truth > 0.5)) - 1, 3),
            f"{one.accuracies.mean():.1%}",
        )
        for kind, one in found.items()
    )
    columns = ("sensitivity", "neighbours", "advantage, membership", "deviation", "advantage, all but one", "accuracy")
    note = "The membership adversary sees the final model alone (Yeom et al. 2018: losses below the training mean)."
    return ReportTable("The final model: membership adversary and accuracy", columns, rows, note)


def _sensitivities(found: Mapping[Kind, Found]) -> ReportTable:
    """Figures 4 and 5: the local sensitivity over the steps and games."""
    rows = []
    for kind, one in found.items():
        steps = one.sensitivities.shape[1]
        shown = [one.sensitivities[:, step].mean() for step in (0, steps // 2, steps - 1)]
        spread = np.quantile(one.sensitivities, (0.0, 0.5, 1.0))
        rows.append((*kind, *(number(float(figure), 3) for figure in (*shown, *spread))))
    columns = ("sensitivity", "neighbours", "first step", "middle", "last step", "least", "median", "largest")
    note = "In clipping norms; the global one is 1 for unbounded neighbours and 2 for bounded ones."
    return ReportTable("Local sensitivity: means over games at a step, and of all steps", columns, tuple(rows), note)


def sweep(
    setting: Setting, found: Mapping[float, Mapping[Kind, Found]], source: str, conviction_confidence: float
) -> Report:
    """Return the report of games at several bounds of the belief: Figures 7 to 9, which print no numbers."""
    each = confidence_of_each(conviction_confidence, len(found))
    rows, convicted = [], []
    for bound, kinds in found.items():
        epsilon = belief_epsilon(bound)
        if _mu_bound(kinds[_JUDGED].games, each) > choices_of(setting, "global", epsilon).mu:
            convicted.append(bound)
        for kind, one in kinds.items():
            said = identifiability_of(one.games, setting.delta, bound)
            figures = (
                epsilon,
                said.epsilon_of_sensitivity,
                said.epsilon_of_belief,
                said.epsilon_of_advantage,
                said.advantage,
                float(one.membership.mean()),
                published_gaussian_advantage(epsilon, setting.delta),
                said.excess,
            )
            rows.append((f"{bound:g}", *kind, *(number(figure, 3) for figure in figures)))
    columns = (
        "belief",
        "sensitivity",
        "neighbours",
        "epsilon",
        "of sensitivity",
        "of belief",
        "of advantage",
        "advantage, all but one",
        "advantage, membership",
        "bound, as published",
        "delta'",
    )
    return Report(
        title=f"The adversary who knows all but one record, on {setting.dataset}, by the bound of the belief",
        finding=f"at a belief of {', '.join(f'{bound:g}' for bound in convicted)}"
        if convicted
        else "at no bound of the belief do the games refute the noise",
        convicted=bool(convicted),
        content={
            "setting": asdict(setting),
            "source": source,
            "rows": [dict(zip(columns, r, strict=True)) for r in rows],
        },
        tables=(ReportTable("epsilon' beside epsilon (Figures 7 to 9)", columns, tuple(rows)),),
        notes=(f"{source}; the three estimates of epsilon' are the paper's, and no bounds.",),
    )


def belief_epsilon(bound: float) -> float:
    """Return ln(belief/(1 - belief)), the paper's Equation 10; its 0.9 is printed as 2.2, which is kept."""
    require_between("the belief", bound, 0.5, 1)
    return EPSILON if bound == BELIEF else math.log(bound / (1 - bound))


def _beliefs(found: Mapping[Kind, Found]) -> Picture:
    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        names = [f"{sensitivity}\n{neighbours}" for sensitivity, neighbours in found]
        axes.violinplot([one.games.beliefs_in_truth for one in found.values()], showmedians=True)
        axes.set_xticks(range(1, len(names) + 1), names)
        axes.axhline(BELIEF, linestyle=":", color="grey", label="bound asked for")
        axes.set_ylabel("final belief in the data set used")
        axes.legend()

    return Picture(draw)
