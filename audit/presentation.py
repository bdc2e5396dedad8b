"""What each audit says, as a report: the verdict in a sentence, tables, pictures, and everything for JSON."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from accounting.picorho import to_rho
from audit.distinguishing.mechanism import ClaimedTradeoff, MechanismFinding
from audit.distinguishing.neighbours import Measurement
from audit.estimators import LowerBound, epsilon_of_mu
from audit.membership.claims import STEPS, ClaimedReleases
from audit.membership.verdict import LOW_RATES, AttackResult
from audit.region import Point
from audit.reports import Picture, Report, Table, interval, number
from audit.sampler import ChiSquare, Timings, within_the_distance
from audit.white_box.bounds import POWER
from audit.white_box.experiments import Measured
from audit.white_box.findings import POOLED, StepFinding
from mechanisms.noise import DISTANCE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from audit.membership.attack import Outcome

Floats = NDArray[np.float64]

_LOWEST_DRAWN = 1e-4
_DRAWN_ATTACKS = 5
_CURVE_POINTS = 65
NOTE_ON_STEPS = (
    "A run's epsilon is what as many sampled steps tell that have the noise which a step's bound leaves possible."
)
_LEVELS = np.linspace(0, 1, 401)
_METHODS = {
    "epsilon_delta": "(epsilon, delta), Clopper-Pearson",
    "tradeoff": "the claim's trade-off function, Clopper-Pearson",
    "pooled_gdp": "mu-GDP, Clopper-Pearson, pooled errors",
    "many_thresholds": "mu-GDP, many thresholds",
}


def of_attack(outcome: "Outcome") -> Report:
    """Return the report of an attack: every attack in one table, and the ROC under the claim's curve."""
    judged, stated = outcome.verdict, [one["membership_advantage_bound"]["now"] for one in outcome.accounts]
    return Report(
        title=f"membership-inference attack on {outcome.model['name']} ({_served_as(outcome.model)})",
        finding=_attack_finding(outcome),
        convicted=outcome.convicted,
        inconclusive=outcome.inconclusive,
        content=_attack_content(outcome),
        tables=(
            _attack_table(outcome),
            Table(
                "what is claimed" if not judged.decision.proven else "what is proven",
                ("of", "rho", "epsilon", "TPR-FPR <=", "eps, replaced", "TPR-FPR <="),
                (
                    _claim_row(f"one decision, {outcome.releases} seen", judged.decision),
                    _claim_row("all that was answered", judged.total),
                ),
                note=f"At delta = {judged.decision.delta:g}. The service states TPR - FPR <= "
                f"{', '.join(map(number, stated))} for what was spent. It is about adding or removing a record; the "
                "experiment replaces one, which is two steps.",
            ),
            _spending_table(outcome),
        ),
        pictures=(_roc(outcome),),
        warnings=(
            *outcome.difference.warnings(),
            *(f"ran out of budget, and used what was answered ({one})" for one in outcome.exhausted),
            *outcome.cautions,
        ),
        notes=_attack_notes(outcome),
    )


def of_mechanism(
    finding: MechanismFinding, scores_in: Floats, scores_out: Floats, title: str, setting: dict[str, Any], *notes: str
) -> Report:
    """Return the report of a distinguishing audit: bounds and the claim, and the trade-off of errors.

    setting: what the audit was asked to do, for JSON. notes: sentences about this audit.
    """
    claim = finding.claim
    return Report(
        title=title,
        finding=_mechanism_finding(finding),
        convicted=finding.convicted,
        content={
            "setting": setting,
            "mechanism": finding.mechanism,
            "status": finding.status,
            "trials": finding.trials,
            "confidence": finding.confidence,
            "conviction_confidence": finding.conviction_confidence,
            "claim": {
                "losses": str(claim.cost),
                "delta": claim.delta,
                "epsilon": claim.epsilon,
                claim.family.parameter: claim.parameter,
            },
            "epsilon_lower_bound": finding.epsilon,
            "epsilon_lower_bound_through_the_claims_family": finding.epsilon_through_the_family,
            "bounds": finding.bounds,
        },
        tables=(
            Table(
                f"lower bounds from {finding.trials} answers in each world, at {finding.confidence:.4g} confidence",
                ("method", "bounds", "at least", "claim", "guarantee"),
                tuple(
                    (_METHODS[name], one.parameter, number(one.value), _claimed(name, one, claim), one.guarantee)
                    for name, one in finding.bounds.items()
                ),
                note="Where the claim is refuted, bounds through its family mean nothing." if finding.convicted else "",
            ),
        ),
        pictures=(_trade_off(claim, scores_in, scores_out),),
        notes=(
            *notes,
            "A lower bound says what an attack has shown, not what a better one could show.",
            f"A claim that holds is convicted by one audit in {1 / (1 - finding.conviction_confidence):.0g} at most; "
            "only exact bounds convict.",
        ),
    )


def of_sampler(
    distances: Mapping[str, float],
    tests: Sequence[tuple[str, ChiSquare]],
    false_alarm: float,
    repeated: int,
    changed: int,
    times: Mapping[str, Timings],
    *notes: str,
) -> Report:
    """Return the report of the sampler. Tables, chi-squares and forks convict; times warn: a busy machine moves them.

    distances: of tables. tests: with the law that each is of. false_alarm: of all tests together. repeated: words that
    came twice in forks. changed: questions that had other noise in another process. times: by mechanism.
    """
    least = false_alarm / len(tests)
    faults = [name for name, distance in distances.items() if not within_the_distance(distance)]
    faults += [f"chi-square of {law}: {found.what}" for law, found in tests if found.p < least]
    faults += ["forks share words"] if repeated else []
    faults += ["a question's noise changes"] if changed else []
    return Report(
        title="Audit of the sampler behind every release",
        finding="; ".join(faults) or "nothing was found",
        convicted=bool(faults),
        content={
            "distances": distances,
            "promised_distance": DISTANCE,
            "chi_squares": [{"law": law} | asdict(found) for law, found in tests],
            "false_alarm": false_alarm,
            "repeated_words": repeated,
            "changed_questions": changed,
            "timings": times,
        },
        tables=(
            Table(
                "tables: exact total variation distance from the ideal law",
                ("table", "distance", "promised at most"),
                tuple((name, number(found), number(DISTANCE)) for name, found in distances.items()),
            ),
            _chi_square_table(tests, least),
            _times_table(times),
        ),
        pictures=(_p_values([one.p for _, one in tests], least),),
        warnings=tuple(
            f"the times of {name!r} differ between extreme and zero logits (t = {found.t:.3g}): look again on a "
            "quiet machine"
            for name, found in times.items()
            if found.suspicious
        ),
        notes=notes,
    )


def of_sensitivity(model: str, found: Mapping[str, tuple[Measurement, ...]]) -> Report:
    """Return the report of measured sensitivities, by how the neighbours were made."""
    beyond = sorted({one.quantity for some in found.values() for one in some if one.share > 1})
    bars = [(f"{one.quantity}\n{how}", one.share) for how, some in found.items() for one in some]

    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        axes.barh([name for name, _ in bars], [share for _, share in bars])
        axes.axvline(1.0, linestyle=":", color="black", label="claimed")
        axes.set_xlabel("measured, of the claim")
        axes.legend()

    return Report(
        title=f"Sensitivity of a {model} model of the digits, measured on neighbours that were trained again",
        finding=f"beyond what is claimed for {', '.join(beyond)}" if beyond else "within what is claimed",
        convicted=bool(beyond),
        content={how: [asdict(one) | {"share": one.share} for one in some] for how, some in found.items()},
        tables=tuple(
            Table(
                how,
                ("quantity", "claim's source", "measured", "claimed", "measured/claimed"),
                tuple(
                    (one.quantity, one.source, number(one.measured), number(one.claimed), number(one.share, 3))
                    for one in some
                ),
            )
            for how, some in found.items()
        ),
        pictures=(
            Picture("Sensitivities", "What lies beyond 1 refutes its claim.", draw, (7.0, 1.2 + 0.7 * len(bars))),
        ),
        notes=("A measurement is a lower bound: below the claim it proves nothing.",),
    )


def of_steps(
    finding: StepFinding,
    measured: Measured,
    title: str,
    setting: Mapping[str, Any],
    *notes: str,
    planted_ratio: float | None = None,
) -> Report:
    """Return the report of one implementation. planted_ratio: of its noise to the claimed one, if that is its fault."""
    return Report(
        title=title,
        finding=_steps_finding(finding, planted_ratio),
        convicted=finding.convicted,
        content={"setting": dict(setting), **steps_content(finding)},
        tables=(_steps_table(finding),),
        pictures=(_histograms(measured),),
        notes=(*notes, NOTE_ON_STEPS),
    )


def of_region(title: str, points: Sequence[Point], delta: float, setting: Mapping[str, Any], *notes: str) -> Report:
    """Return the report of a region: bounds by noise multiplier, and a drawing. Raises ValueError for no points."""
    if not points:
        raise ValueError("a region needs at least one noise multiplier")
    convicted = [point.noise_multiplier for point in points if point.convicted]
    gap = max(point.best_lower / point.best_upper for point in points if point.best_upper > 0)
    found = (
        f"at noise multiplier {', '.join(f'{one:g}' for one in convicted)}"
        if convicted
        else f"the best lower bound reaches {gap:.0%} of the best upper bound at most"
    )
    return Report(
        title=title,
        finding=found,
        convicted=bool(convicted),
        content={"setting": dict(setting), "delta": delta, "points": [asdict(point) for point in points]},
        tables=tuple(_region_tables(points, delta)),
        pictures=(_region_picture(points, delta),),
        notes=(*notes, "The true epsilon lies between the best lower and the best upper bound."),
    )


def _served_as(model: Mapping[str, Any]) -> str:
    """The mechanism and its price in words."""
    price = model.get("price_per_row") or {}
    losses = price.get("losses") or "nothing a row"
    return f"{model.get('mechanism', 'one release')}, {model.get('mechanism_status', 'proven')}, at {losses}"


def _attack_finding(outcome: "Outcome") -> str:
    judged, best = outcome.verdict, outcome.verdict.best
    if outcome.replays.averaging_is_free:
        return (
            f"one row asked about {outcome.replays.times} times got {outcome.replays.answers} different "
            f"answers for rho = {number(to_rho(outcome.replays.charged))}, less than their price, so that "
            "its noise can be averaged away"
        )
    if outcome.charges.faults:
        return f"{'; '.join(outcome.charges.faults)}; {_of_the_spending(outcome)}"
    found = (
        f"the best attack ({best.attack}) has TPR - FPR = {best.advantage:.3f} {interval(best.low, best.high)} and "
        f"shows epsilon >= {best.epsilon:.3f} at {judged.confidence:.0%} nominal confidence"
    )
    if judged.convicted and best.epsilon <= judged.claimed_epsilon:
        found += f"; {_beyond(outcome)}"
    claimed = (
        f"the {'proven' if judged.decision.proven else 'claimed, unproven'} epsilon for it is "
        f"{number(judged.claimed_epsilon)} at delta = {judged.decision.delta:g}; {_of_the_spending(outcome)}"
    )
    if outcome.inconclusive:
        return f"members and non-members cannot be compared; {found}; {claimed}"
    return f"{found}, but {claimed}" if outcome.convicted else f"{found}; {claimed}"


def _of_the_spending(outcome: "Outcome") -> str:
    """What is claimed for what the accounts say was spent, whatever the answers should have cost."""
    total = outcome.verdict.total
    return (
        f"for what was actually spent, rho = {number(total.rho)}, TPR - FPR <= {number(total.advantage())} "
        f"(two steps: {number(total.advantage(STEPS))})"
    )


def _beyond(outcome: "Outcome") -> str:
    """What convicts where the lower bound of epsilon does not."""
    judged = outcome.verdict
    corner, pairs = judged.best.corner, judged.pairs
    if judged.convicted_exactly:
        return (
            f"{pairs.right} of {pairs.guesses} guesses about pairs are right and show epsilon >= {pairs.epsilon:.3f} "
            f"of all answers together, exactly, where {number(judged.total.epsilon(STEPS))} is claimed"
        )
    return (
        f"its TPR is at least {corner.true_positive_rate:.3f} where its FPR is at most "
        f"{corner.false_positive_rate:.3f}, for which the claim allows {corner.allowed:.3f}"
    )


def _attack_content(outcome: "Outcome") -> dict[str, Any]:
    judged, plan = outcome.verdict, outcome.plan
    return {
        "model": {
            name: outcome.model.get(name)
            for name in ("name", "model_id", "status", "mechanism", "mechanism_status", "price_per_row")
        },
        "confidence": judged.confidence,
        "seed": outcome.choices.seed,
        "plan": {
            "of_each": plan.of_each,
            "offered": plan.offered,
            "rows_for_each_candidate": plan.copies,
            "keys": plan.keys,
            "rows_affordable": plan.left,
            "rows_affordable_together": plan.shared,
            "half_width": plan.half_width,
            "largest_epsilon": plan.largest_epsilon,
        },
        "decided": {"members": outcome.decided[0], "non_members": outcome.decided[1]},
        "answers_seen_by_a_decision": outcome.releases,
        "exhausted": outcome.exhausted,
        "replays": {
            "times": outcome.replays.times,
            "answers": outcome.replays.answers,
            "charged": to_rho(outcome.replays.charged),
            "price": to_rho(outcome.replays.price),
        },
        "charges": {
            "price": to_rho(outcome.charges.price),
            "rows": outcome.charges.rows,
            "spent": [to_rho(spent) for spent in outcome.charges.spent],
            "shared_by_all_keys": outcome.charges.shared,
            "keys_overdrawn": outcome.charges.overdrawn,
            "keys_refused_at_the_end": outcome.charges.refused,
            "faults": outcome.charges.faults,
        },
        "shadow_models": {"count": outcome.choices.shadow_models, "records": outcome.shadow_records},
        "same_distribution": outcome.difference,
        "attacks": [_result_content(one) for one in judged.found],
        "best": judged.best.attack,
        "roc": _curves(outcome),
        "epsilon_lower_bound": judged.best.epsilon,
        "corner": judged.best.corner,
        "pairs": judged.pairs,
        "claim": {
            "delta": judged.decision.delta,
            "of_one_decision": _claim_content(judged.decision),
            "of_everything_spent": _claim_content(judged.total),
            "advantage_bound_stated_by_the_service": [
                account["membership_advantage_bound"]["now"] for account in outcome.accounts
            ],
        },
        "spent": [account["spent"] for account in outcome.accounts],
    }


def _curves(outcome: "Outcome") -> dict[str, Any]:
    """What `_roc` draws, the best attack first: at each false positive rate the true positive rate within it."""
    rates = np.union1d(np.linspace(0, 1, _CURVE_POINTS), np.geomspace(_LOWEST_DRAWN, 1, _CURVE_POINTS))
    return {
        "false_positive_rates": rates,
        "attacks": [{"attack": one.attack, "true_positive_rates": _within(one, rates)} for one in _drawn(outcome)],
        "bound": outcome.verdict.decision.power(rates, STEPS),
    }


def _within(one: AttackResult, rates: Floats) -> Floats:
    within = np.searchsorted(one.false_positive_curve, rates, side="right") - 1
    return one.true_positive_curve[np.maximum(within, 0)]


def _drawn(outcome: "Outcome") -> list[AttackResult]:
    judged = outcome.verdict
    ranked = sorted(judged.found, key=lambda one: (one is judged.best, one.selection_advantage), reverse=True)
    return ranked[:_DRAWN_ATTACKS]


def _roc(outcome: "Outcome") -> Picture:
    """The ROC of the best attacks, linear and log-log, under the curve that the claim does not let them cross."""

    def draw(figure: "Figure") -> None:
        linear, logarithmic = figure.subplots(1, 2)
        _draw_roc(linear, outcome, np.linspace(0, 1, 513))
        _draw_roc(logarithmic, outcome, np.geomspace(_LOWEST_DRAWN, 1, 513))
        logarithmic.set_xscale("log")
        logarithmic.set_yscale("log")
        logarithmic.set_xlim(_LOWEST_DRAWN, 1)
        logarithmic.set_ylim(_LOWEST_DRAWN, 1.05)
        linear.legend(fontsize="small", loc="lower right")

    caption = (
        f"{outcome.decided[0]} members and {outcome.decided[1]} non-members. The shaded side of the black curve is out "
        "of reach if the claim holds, except by chance."
    )
    return Picture(f"ROC of attacks on {outcome.model['name']}", caption, draw, (11, 5))


def _draw_roc(axes: "Axes", outcome: "Outcome", rates: Floats) -> None:
    judged = outcome.verdict
    for one in _drawn(outcome):
        width = 2.0 if one is judged.best else 1.0
        axes.plot(one.false_positive_curve, one.true_positive_curve, linewidth=width, label=one.attack)
    axes.plot(rates, rates, color="grey", linestyle=":", label="guessing")
    bound = judged.decision.power(rates, STEPS)
    status = "proven" if judged.decision.proven else "claimed"
    axes.plot(rates, bound, color="black", linestyle="--", label=f"bound ({status})")
    axes.fill_between(rates, bound, 1.05, color="black", alpha=0.06)
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("true positive rate")
    axes.set_ylim(0, 1.05)
    axes.grid(visible=True, alpha=0.3)


def _attack_table(outcome: "Outcome") -> Table:
    judged = outcome.verdict
    rows = tuple(
        (
            ("* " if one is judged.best else "") + one.attack,
            f"{one.advantage:+.3f}",
            f"{one.low:+.2f} {one.high:+.2f}",
            f"{one.auc:.3f}",
            number(one.true_positive_rates[1], 3),
            number(one.true_positive_rates[0], 3),
            number(one.precision, 3),
            f"{one.epsilon:.3f}",
        )
        for one in judged.found
    )
    return Table(
        f"attacks on {outcome.decided[0]} members and {outcome.decided[1]} non-members",
        ("attack", "TPR-FPR", f"{judged.confidence:.0%}", "AUC", "1%", "0.1%", "prec.", "eps >="),
        rows,
        note="* the one that counts, chosen where thresholds are. 1%, 0.1%: TPR at this FPR; a dash where non-members "
        "are too few to see it. eps >=: lower bound of epsilon for replacing one record.",
    )


def _claim_row(what: str, claim: ClaimedReleases) -> tuple[str, ...]:
    return (
        what,
        number(claim.rho),
        _epsilon(claim.epsilon()),
        number(claim.advantage()),
        _epsilon(claim.epsilon(STEPS)),
        number(claim.advantage(STEPS)),
    )


def _epsilon(value: float) -> str:
    return number(value) if math.isfinite(value) else "none"


def _spending_table(outcome: "Outcome") -> Table:
    rows = tuple(
        (
            str(place),
            number(account["spent"]["rho"]),
            number(account["spent"]["epsilon"]),
            "-" if account["queries_left"] is None else str(account["queries_left"]),
        )
        for place, account in enumerate(outcome.accounts, start=1)
    )
    return Table("what the keys spent", ("key", "rho", "epsilon", "rows left"), rows)


def _attack_notes(outcome: "Outcome") -> tuple[str, ...]:
    replays, pairs = outcome.replays, outcome.verdict.pairs
    return (
        f"{outcome.choices.shadow_models} shadow models of {outcome.shadow_records} records; "
        f"seed {outcome.choices.seed}",
        f"one row asked about {replays.times} times more: {replays.answers} answer{'s' * (replays.answers > 1)}, "
        f"charged rho = {number(to_rho(replays.charged))}",
        _charged(outcome),
        f"of {pairs.guesses} guesses which of a pair is the member {pairs.right} are right: epsilon >= "
        f"{pairs.epsilon:.3f} of all answers together, for replacing one record; exact confidence",
        "the interval and eps >= are about this model's own rates. A claim bounds their mean over the draw of members, "
        "and for that step there is no confidence: it is nominal. Bounds that convict hold together at the confidence",
    )


def _charged(outcome: "Outcome") -> str:
    charges = outcome.charges
    if not charges.price:
        return "answers cost nothing more: the model was paid for once"
    last = "one row more than is left was refused" if charges.refused else "more is left than one request can overdraw"
    shared = {True: "; what the keys spend is shared", False: "; what the keys spend is not shared", None: ""}
    return (
        f"answers to {sum(charges.rows)} rows cost rho = {number(to_rho(sum(charges.rows) * charges.price))}, accounts "
        f"have spent rho = {number(to_rho(sum(charges.spent)))}; {last}{shared[charges.shared]}"
    )


def _result_content(one: AttackResult) -> dict[str, Any]:
    return {
        "attack": one.attack,
        "advantage": one.advantage,
        "interval": [one.low, one.high],
        "true_positive_rate": one.true_positive_rate,
        "false_positive_rate": one.false_positive_rate,
        "auc": one.auc,
        "tpr_at_low_fpr": {f"{rate:g}": value for rate, value in zip(LOW_RATES, one.true_positive_rates, strict=True)},
        "precision": one.precision,
        "epsilon_lower_bound": one.epsilon,
        "threshold": one.threshold,
        "threshold_from": "shadow models" if one.own_threshold else "candidates that are not counted",
        "errors": one.errors,
    }


def _claim_content(claim: ClaimedReleases) -> dict[str, Any]:
    return {
        "status": "proven" if claim.proven else "unproven",
        "rho": claim.rho,
        "epsilon": claim.epsilon(),
        "advantage_bound": claim.advantage(),
        "epsilon_for_replacing": claim.epsilon(STEPS),
        "advantage_bound_for_replacing": claim.advantage(STEPS),
    }


def _mechanism_finding(finding: MechanismFinding) -> str:
    claim = finding.claim
    at = f" at delta = {claim.delta:g}" if claim.delta else ""
    shown = f"epsilon >= {number(finding.epsilon)}{at} with {finding.confidence:.4g} confidence"
    if finding.convicted:
        return f"{shown}, and the claim is {number(claim.epsilon)}"
    through = finding.epsilon_through_the_family
    closer = "" if through is None else f", and >= {number(through)} through the claim's own trade-off function"
    return f"{shown}{closer}; the claim is {number(claim.epsilon)}"


def _claimed(name: str, bound: LowerBound, claim: ClaimedTradeoff) -> str:
    through_family = name in ("tradeoff", "pooled_gdp", "many_thresholds") and bound.parameter == claim.family.parameter
    return number(claim.parameter if through_family else claim.epsilon)


def _trade_off(claim: ClaimedTradeoff, scores_in: Floats, scores_out: Floats) -> Picture:
    """Draw the errors that were observed at every threshold, and the fewest that the claim allows."""
    thresholds = np.unique(np.concatenate([scores_in, scores_out]))
    false_alarms = 1 - np.searchsorted(np.sort(scores_out), thresholds, side="left") / len(scores_out)
    missed = np.searchsorted(np.sort(scores_in), thresholds, side="left") / len(scores_in)
    least = claim.family.tradeoff(claim.parameter, _LEVELS)

    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        axes.plot([0, 1], [1, 0], ":", color="grey", label="guessing")
        axes.plot(_LEVELS, least, label="the fewest errors that the claim allows")
        axes.plot(np.append(false_alarms, 0.0), np.append(missed, 1.0), label="errors observed, by threshold")
        axes.set_xlabel("false positive rate")
        axes.set_ylabel("false negative rate")
        axes.set_aspect("equal")
        axes.legend(fontsize="small")

    return Picture(
        "trade-off of errors",
        "Each point is one threshold on the score. Points far below the claim's line refute it.",
        draw,
        inches=(5.2, 5.0),
    )


def _chi_square_table(tests: Sequence[tuple[str, ChiSquare]], least: float) -> Table:
    smallest: dict[tuple[str, str], list[ChiSquare]] = {}
    for law, found in tests:
        smallest.setdefault((law, found.what), []).append(found)
    return Table(
        "draws: chi-square tests",
        ("law", "of", "tests", "cells", "smallest p", "convicts below"),
        tuple(
            (law, what, str(len(of)), str(of[0].cells), number(min(one.p for one in of)), number(least, 2))
            for (law, what), of in smallest.items()
        ),
    )


def _times_table(times: Mapping[str, Timings]) -> Table:
    rows = []
    for name, found in times.items():
        best = min(found.correlations, key=lambda one: one.p)
        row = number(found.median_microseconds), number(best.correlation, 2), best.property, number(best.p, 2)
        rows.append((name, str(found.releases), *row, number(found.t, 3)))
    return Table(
        "time of a release of one row",
        ("mechanism", "releases", "median, us", "correlation", "with", "p", "t, extreme against zero"),
        tuple(rows),
        note="The strongest of four correlations with the logits is shown. Where |t| was above 3, the mechanism was "
        "timed again, with twice as many releases, and the second look is shown.",
    )


def _p_values(p_values: Sequence[float], least: float) -> Picture:
    found = sorted(max(p, 1e-18) for p in p_values)

    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        expected = [(i + 0.5) / len(found) for i in range(len(found))]
        axes.loglog(expected, found, "o", label="chi-square tests")
        axes.loglog(expected, expected, ":", color="grey", label="expected of a right sampler")
        axes.axhline(least, linestyle="--", color="tab:red", label="convicts below")
        axes.set_xlabel("rank of the test, of all")
        axes.set_ylabel("p-value")
        axes.legend(fontsize="small")

    return Picture("p-values", "The chi-square tests' p-values in ascending order.", draw)


def _steps_finding(finding: StepFinding, planted_ratio: float | None) -> str:
    """Say what was found, by an exact bound, and for an audit that refutes nothing what it could have refuted."""
    claim = finding.claim
    if finding.convicted:
        epsilon, confidence = epsilon_of_mu(finding.sure_mu, claim.delta), finding.conviction_confidence
    else:
        epsilon, confidence = finding[POOLED].step_epsilon, finding.confidence
    shown = (
        f"a step's epsilon >= {number(epsilon)} at delta = {claim.delta:g} with {confidence:.10g} confidence, "
        f"and {number(claim.step_epsilon)} is claimed"
    )
    if finding.convicted:
        return shown
    return f"{shown}; {seen(finding, planted_ratio)}"


def seen(finding: StepFinding, planted_ratio: float | None) -> str:
    """Say what such an audit convicts of noise that is too small, and how likely."""
    if planted_ratio is not None:
        return f"power {number(finding.power(planted_ratio), 2)} against noise {planted_ratio:g} times the claimed"
    ratio = finding.ratio_seen
    if ratio is None:
        return f"too few observations to convict any noise with power {POWER:g}"
    return f"power {POWER:g} against noise {number(ratio, 3)} times the claimed"


def steps_content(finding: StepFinding) -> dict[str, Any]:
    """Return the finding for JSON."""
    return {
        "claim": {
            **asdict(finding.claim),
            "epsilon": finding.claim.epsilon,
            "step_epsilon": finding.claim.step_epsilon,
        },
        "observations": finding.observations,
        "accuracy": finding.accuracy,
        "confidence": finding.confidence,
        "conviction_confidence": finding.conviction_confidence,
        "convicted": finding.convicted,
        "power": {"power": POWER, "against_noise_ratio": finding.ratio_seen},
        "bounds": {
            row.method: {
                row.bound.parameter: row.bound.value,
                "guarantee": row.bound.guarantee,
                "step_epsilon": row.step_epsilon,
                "run_epsilon": row.run_epsilon,
            }
            for row in finding.rows
        },
    }


def _steps_table(finding: StepFinding) -> Table:
    rows = tuple(
        (row.method, number(row.step_epsilon), number(row.run_epsilon), row.bound.guarantee) for row in finding.rows
    )
    claim = finding.claim
    claimed = ("claimed", number(claim.step_epsilon), number(claim.epsilon), "")
    note = (
        f"{finding.observations} observations each way; noise multiplier {number(claim.noise_multiplier)}, sampling "
        f"rate {number(claim.sampling_rate)}, {claim.steps} steps; mean accuracy {finding.accuracy:.1%}"
    )
    columns = ("method", "a step's epsilon", "a run's epsilon", "guarantee")
    return Table(f"Lower bounds at delta = {claim.delta:g}", columns, (*rows, claimed), note)


def _histograms(measured: Measured) -> Picture:
    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        edges = np.histogram_bin_edges(np.concatenate([measured.without, measured.with_canary]), bins=60)
        axes.hist(measured.without, edges.tolist(), alpha=0.6, label="without the canary")
        axes.hist(measured.with_canary, edges.tolist(), alpha=0.6, label="with the canary")
        axes.set_xlabel("observation, in clipping norms")
        axes.set_ylabel("steps")
        axes.legend()

    return Picture("Observations", "What one step shows, with the canary and without it.", draw)


def _region_tables(points: Sequence[Point], delta: float) -> Sequence[Table]:
    def table(title: str, of: Callable[[Point], Mapping[str, float]]) -> Table:
        names = tuple(dict.fromkeys(name for point in points for name in of(point)))
        rows = tuple(
            (f"{point.noise_multiplier:g}", *(number(of(point).get(name)) for name in names)) for point in points
        )
        return Table(title, ("noise multiplier", *names), rows)

    found = [
        table(f"Lower bounds of epsilon at delta = {delta:g}", lambda point: point.lower),
        table(f"Upper bounds of epsilon at delta = {delta:g}", lambda point: point.upper),
    ]
    if any(point.notes for point in points):
        found.append(table("Besides", lambda point: point.notes))
    return found


def _region_picture(points: Sequence[Point], delta: float) -> Picture:
    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        ordered = sorted(points, key=lambda point: point.noise_multiplier)
        noise = [point.noise_multiplier for point in ordered]
        floor = 1e-3
        lower = np.array([max(point.best_lower, floor) for point in ordered])
        upper = np.array([max(point.best_upper, floor) for point in ordered])
        for name in dict.fromkeys(name for point in ordered for name in point.upper):
            axes.plot(noise, [point.upper.get(name, np.nan) for point in ordered], "--", alpha=0.6, label=name)
        axes.plot(noise, upper, "o-", color="black", label="best upper bound")
        axes.plot(noise, lower, "s-", color="tab:red", label="best lower bound")
        axes.fill_between(noise, lower, upper, alpha=0.2, color="grey")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("noise multiplier")
        axes.set_ylabel(f"epsilon at delta = {delta:g}")
        axes.legend(fontsize="small")

    caption = f"The region of privacy. A lower bound of 0 is drawn at {1e-3:g}."
    return Picture("Region of privacy", caption, draw, inches=(6.4, 4.4))
