"""Reports of the audits: the verdict in a sentence, tables, pictures, and everything for JSON."""

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.accounting.picorho import to_rho
from dpserve.audit.distinguishing.mechanism import ClaimedTradeoff, MechanismFinding
from dpserve.audit.exposure_report import Groups, exposure_content, exposure_tables
from dpserve.audit.membership.claims import STEPS, ClaimedReleases, spread_of_strangers, what_is_protected
from dpserve.audit.membership.verdict import LOW_RATES, AttackResult, Verdict
from dpserve.audit.release import ReleaseFinding
from dpserve.audit.replay import Replayed
from dpserve.audit.reports import Picture, Report, ReportTable, interval, number
from dpserve.audit.sampler import ChiSquare, SamplerFinding
from dpserve.mechanisms.noise import DISTANCE
from dpserve.training.pay_once.canary_verdict import DOUBT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dpserve.audit.membership.attack import Outcome


_LOWEST_DRAWN = 1e-4
_DRAWN_ATTACKS = 5
_CURVE_POINTS = 65
"""Points of an ROC, on either scale."""


def attack_report(outcome: "Outcome", groups: Groups | None = None) -> Report:
    """Return the report of an attack: every attack in one table, single records, and the ROC under the claim's curve.

    groups: of the records, by which they are counted, too.
    """
    judged, model, unit = outcome.verdict, outcome.model, outcome.model.get("unit")
    served = f"{model.get('mechanism', 'one release')}, {model.get('mechanism_status', 'proven')}"
    losses = (model.get("price_per_row") or {}).get("losses")
    price = f"at {losses} a row" if losses else "paid for once"
    of_units = "" if unit is None else f", units of all records of one {unit!r}"
    decided = f"{outcome.decided[0]} members and {outcome.decided[1]} non-members{of_units}"
    roc = _roc(judged)
    return Report(
        title=f"membership-inference attack on {model['name']} ({served}, {price})",
        finding=_attack_finding(outcome)
        + (f"; convicted by {' and '.join(outcome.convictions)}" if outcome.convicted else ""),
        convicted=outcome.convicted,
        inconclusive=outcome.inconclusive,
        content=_attack_content(outcome) | exposure_content(outcome.exposure, groups) | {"roc": roc},
        tables=(*_attack_tables(outcome, decided), *exposure_tables(outcome.exposure, groups)),
        picture=Picture(lambda figure: _draw_roc(figure, roc, proven=judged.decision.proven), (11, 5)),
        warnings=(
            *outcome.difference.warnings(),
            *(f"ran out of budget, and used what was answered ({scope})" for scope in outcome.exhausted),
            *outcome.cautions,
        ),
        notes=_attack_notes(outcome),
    )


def _powerless(judged: Verdict) -> tuple[str, ...]:
    if not judged.powerless or judged.convicted:
        return ()
    bounds = " or ".join(judged.powerless)
    return (f"of so many candidates even an attack that is always right would not convict by {bounds}",)


def _attack_content(outcome: "Outcome") -> dict[str, Any]:
    """Return everything but the ROC, for JSON."""
    judged, plan, replays, charges = outcome.verdict, outcome.plan, outcome.replays, outcome.charges
    shown = ("name", "model_id", "status", "unit", "mechanism", "mechanism_status", "price_per_row")
    planned = ("of_each", "offered", "keys", "half_width", "largest_epsilon")
    return {
        "model": {name: outcome.model.get(name) for name in shown},
        "confidence": judged.confidence,
        "seed": outcome.choices.seed,
        "plan": {
            **{name: getattr(plan, name) for name in planned},
            "rows_for_each_candidate": plan.copies,
            "rows_affordable": plan.left,
            "rows_affordable_together": plan.shared,
        },
        "cannot_convict": judged.powerless,
        "decided": {"members": outcome.decided[0], "non_members": outcome.decided[1]},
        "answers_seen_by_a_decision": outcome.releases,
        "exhausted": outcome.exhausted,
        "replays": vars(replays) | {"charged": to_rho(replays.charged), "price": to_rho(replays.price)},
        "charges": {
            "currency": charges.currency,
            "price": to_rho(charges.price),
            "rows": charges.rows,
            "spent": [to_rho(spent) for spent in charges.spent],
            "shared_by_all_keys": charges.shared,
            "keys_overdrawn": charges.overdrawn,
            "keys_refused_at_the_end": charges.refused,
            "faults": charges.faults,
        },
        "noise": {
            "rows": outcome.noise.rows,
            "p_value": outcome.noise.p_value,
            "p_values": dict(outcome.noise.p_values),
            "ratio": outcome.noise.ratio,
            "note": outcome.noise.note,
        },
        "convicted_by": outcome.convictions,
        "shadow_models": {
            "count": outcome.choices.shadow_models,
            "records": outcome.shadow_records,
            "pool": outcome.pool,
            "device": outcome.shadow_device,
        },
        "same_distribution": outcome.difference,
        "attacks": [_result_content(result) for result in judged.found],
        "best": judged.best.attack,
        "epsilon_lower_bound": judged.epsilon,
        "corner": judged.best.corner,
        "pairs": judged.pairs,
        "claim": {
            "delta": judged.decision.delta,
            "of_one_decision": _claim_content(judged.decision),
            "of_everything_spent": _claim_content(judged.total),
            "advantage_bound_stated_by_the_service": _stated_bounds(outcome),
        },
        "spent": [account["spent"] for account in outcome.accounts],
    }


def _stated_bounds(outcome: "Outcome") -> list[float]:
    """Return the bound of the advantage that the service states for each key."""
    return [account["membership_advantage_bound"]["now"] for account in outcome.accounts]


def _attack_tables(outcome: "Outcome", decided: str) -> tuple[ReportTable, ...]:
    judged, protected = outcome.verdict, what_is_protected(outcome.model)
    claims = (f"one decision, {outcome.releases} seen", judged.decision), ("all that was answered", judged.total)
    return (
        ReportTable.from_rows(
            f"attacks on {decided}",
            ("attack", "TPR-FPR", f"{judged.confidence:.0%}", "AUC", "1%", "0.1%", "prec.", "eps >="),
            [
                (
                    ("* " if result is judged.best else "") + result.attack,
                    f"{result.advantage:+.3f}",
                    f"{result.low:+.2f} {result.high:+.2f}",
                    f"{result.auc:.3f}",
                    *(number(rate, 3) for rate in (*reversed(result.true_positive_rates), result.precision)),
                    f"{result.epsilon:.3f}",
                )
                for result in judged.found
            ],
            "* the one that counts, chosen where thresholds are. 1%, 0.1%: TPR at this FPR; a dash where "
            f"non-members are too few to see it. eps >=: lower bound of epsilon for replacing one {protected}.",
        ),
        ReportTable.from_rows(
            "what is proven" if judged.decision.proven else "what is claimed",
            ("of", "rho", "epsilon", "TPR-FPR <=", "eps, replaced", "TPR-FPR <="),
            [(what, claim.rho, *_claimed(claim, 1), *_claimed(claim, STEPS)) for what, claim in claims],
            f"At delta = {judged.decision.delta:g}. The service states TPR - FPR <= "
            f"{', '.join(map(number, _stated_bounds(outcome)))} for what was spent. It is about adding or removing a "
            f"{protected}; the experiment replaces one, which is two steps.",
        ),
        ReportTable.from_rows(
            "what the keys spent",
            ("key", "epsilon", "rows left"),
            [
                (place, account["spent"]["epsilon"], account["queries_left"])
                for place, account in enumerate(outcome.accounts, start=1)
            ],
        ),
    )


def _attack_notes(outcome: "Outcome") -> tuple[str, ...]:
    replays, pairs, protected = outcome.replays, outcome.verdict.pairs, what_is_protected(outcome.model)
    return (
        f"{outcome.choices.shadow_models} shadow models, each of {outcome.shadow_records} of the {outcome.pool} "
        f"{protected}s in the files, trained on the "
        f"{'processor' if outcome.shadow_device == 'cpu' else 'CUDA device'}; seed {outcome.choices.seed}",
        f"rates are those of an attacker who has these files: a stranger's models would differ up to "
        f"{spread_of_strangers(outcome.shadow_records, outcome.pool):.2f} times as much, and show less",
        f"one row asked about {replays.times} times more: {replays.answers} answer{'s' * (replays.answers > 1)}, "
        f"charged {replays.currency} = {number(to_rho(replays.charged))}",
        _charge_rows(outcome),
        _noise(outcome),
        f"of {pairs.guesses} guesses which of a pair is the member {pairs.right} are right: epsilon >= "
        f"{pairs.epsilon:.3f} of all answers together, for replacing one {protected}; exact confidence",
        "the interval and eps >= are about this model's own rates. A claim bounds their mean over the draw of "
        "members, and for that step there is no confidence: it is nominal. Bounds that convict hold together at "
        "the confidence",
        *_powerless(outcome.verdict),
    )


def _attack_finding(outcome: "Outcome") -> str:
    judged, best, pairs, replays = outcome.verdict, outcome.verdict.best, outcome.verdict.pairs, outcome.replays
    total = judged.total
    spending = (
        f"for what was actually spent, epsilon = {number(total.epsilon())} at delta = {total.delta:g}, "
        f"TPR - FPR <= {number(total.advantage())} "
        f"(two steps: {number(total.advantage(STEPS))})"
    )
    if replays.averaging_is_free:
        return (
            f"one row asked about {replays.times} times got {replays.answers} different answers for "
            f"{replays.currency} = {number(to_rho(replays.charged))}, less than their price, so that its noise can be "
            "averaged away"
        )
    if outcome.charges.faults:
        return f"{'; '.join(outcome.charges.faults)}; {spending}"
    if outcome.noise_is_missing:
        return f"{_noise(outcome)}; {spending}"
    unit = outcome.model.get("unit")
    whom = "" if unit is None else f" on units, each all records of one {unit!r},"
    finding = (
        f"the best attack ({best.attack}){whom} has TPR - FPR = {best.advantage:.3f} {interval(best.low, best.high)} "
        f"and shows epsilon >= {best.epsilon:.3f} at {judged.confidence:.0%} nominal confidence"
    )
    if judged.epsilon > best.epsilon:
        finding += f"; guesses about pairs show epsilon >= {judged.epsilon:.3f}, exactly"
    if judged.convicted and best.epsilon <= judged.claimed_epsilon:
        corner = best.corner
        finding += (
            f"; {pairs.right} of {pairs.guesses} guesses about pairs are right and show epsilon >= {pairs.epsilon:.3f} "
            f"of all answers together, exactly, where {number(total.epsilon(STEPS))} is claimed"
            if judged.convicted_exactly
            else f"; its TPR is at least {corner.true_positive_rate:.3f} where its FPR is at most "
            f"{corner.false_positive_rate:.3f}, for which the claim allows {corner.allowed:.3f}"
        )
    claimed = (
        f"the {'proven' if judged.decision.proven else 'claimed, unproven'} epsilon for it is "
        f"{number(judged.claimed_epsilon)} at delta = {judged.decision.delta:g}; {spending}"
    )
    if outcome.inconclusive:
        return f"members and non-members cannot be compared; {finding}; {claimed}"
    return f"{finding}, but {claimed}" if outcome.convicted else f"{finding}; {claimed}"


def _noise(outcome: "Outcome") -> str:
    noise = outcome.noise
    if not noise.rows:
        return f"whether the noise is there was not tested: {noise.note}"
    measured = "" if noise.ratio is None else f"; it measures {number(noise.ratio, 3)} of what is promised"
    seen = f"answers to {noise.rows} near-copies of a row nobody was trained on"
    if outcome.noise_is_missing:
        return f"{seen} show {noise.strongest}, p = {noise.p_value:.2g}{measured}"
    return f"{seen} show no noise that is missing or reused, p = {noise.p_value:.2g}{measured}"


def _charge_rows(outcome: "Outcome") -> str:
    charges = outcome.charges
    if not charges.price:
        return "answers cost nothing more: the model was paid for once"
    last = "one row more than is left was refused" if charges.refused else "more is left than one request can overdraw"
    shared = {True: "; what the keys spend is shared", False: "; what the keys spend is not shared", None: ""}
    return (
        f"answers to {sum(charges.rows)} rows cost {charges.currency} = "
        f"{number(to_rho(sum(charges.rows) * charges.price))}, accounts have spent {charges.currency} = "
        f"{number(to_rho(sum(charges.spent)))}; {last}{shared[charges.shared]}"
    )


def _result_content(result: AttackResult) -> dict[str, Any]:
    rates = ("advantage", "true_positive_rate", "false_positive_rate", "auc", "precision")
    same = ("attack", *rates, "threshold", "errors")
    return {name: getattr(result, name) for name in same} | {
        "interval": [result.low, result.high],
        "tpr_at_low_fpr": {
            f"{rate:g}": value for rate, value in zip(LOW_RATES, result.true_positive_rates, strict=True)
        },
        "epsilon_lower_bound": result.epsilon,
    }


def _claimed(claim: ClaimedReleases, steps: int) -> tuple[str, str]:
    epsilon = claim.epsilon(steps)
    return number(epsilon) if math.isfinite(epsilon) else "none", number(claim.advantage(steps))


def _claim_content(claim: ClaimedReleases) -> dict[str, Any]:
    return {
        "status": "proven" if claim.proven else "unproven",
        "rho": claim.rho,
        "epsilon": claim.epsilon(),
        "advantage_bound": claim.advantage(),
        "epsilon_for_replacing": claim.epsilon(STEPS),
        "advantage_bound_for_replacing": claim.advantage(STEPS),
    }


def _roc(judged: Verdict) -> dict[str, Any]:
    """Return what is drawn of the best attacks, the one that counts first: at each FPR the TPR within it."""
    order = sorted(judged.found, key=lambda result: (result is judged.best, result.selection_advantage), reverse=True)
    # Below one false alarm the sample says nothing.
    lowest = max(_LOWEST_DRAWN, 1 / judged.best.errors.negatives)
    rates = np.union1d(np.linspace(0, 1, _CURVE_POINTS), np.geomspace(lowest, 1, _CURVE_POINTS))
    rates = rates[(rates == 0) | (rates >= lowest)]

    def curve_of(result: AttackResult) -> Floats:
        reached = np.searchsorted(result.false_positive_curve, rates, side="right") - 1
        within_sample: Floats = result.true_positive_curve[np.maximum(reached, 0)]
        return within_sample

    drawn = [{"attack": result.attack, "true_positive_rates": curve_of(result)} for result in order[:_DRAWN_ATTACKS]]
    return {"false_positive_rates": rates, "attacks": drawn, "bound": judged.decision.power(rates, STEPS)}


def _draw_roc(figure: "Figure", roc: dict[str, Any], *, proven: bool) -> None:
    """Draw the ROC, linear and log-log, under the curve that the claim does not let it cross."""
    rates, bound = roc["false_positive_rates"], roc["bound"]
    linear, logarithmic = figure.subplots(1, 2)
    for axes in (linear, logarithmic):
        for place, result in enumerate(roc["attacks"]):
            axes.plot(rates, result["true_positive_rates"], linewidth=1.0 if place else 2.0, label=result["attack"])
        axes.plot(rates, rates, color="grey", linestyle=":", label="guessing")
        axes.plot(rates, bound, color="black", linestyle="--", label=f"bound ({'proven' if proven else 'claimed'})")
        axes.fill_between(rates, bound, 1.05, color="black", alpha=0.06)
        axes.set(xlabel="false positive rate", ylabel="true positive rate", ylim=(0, 1.05))
        axes.grid(visible=True, alpha=0.3)
    logarithmic.set(xscale="log", yscale="log", xlim=(rates[rates > 0].min(), 1), ylim=(_LOWEST_DRAWN, 1.05))
    linear.legend(fontsize="small", loc="lower right")


_METHODS = {
    "epsilon_delta": "(epsilon, delta), Clopper-Pearson",
    "tradeoff": "the claim's trade-off function, Clopper-Pearson",
    "pooled_gdp": "mu-GDP, Clopper-Pearson, pooled errors",
}


def mechanism_report(
    finding: MechanismFinding, scores_in: Floats, scores_out: Floats, title: str, setting: dict[str, Any], *notes: str
) -> Report:
    """Return the report of a distinguishing audit: bounds and the claim, and the trade-off of errors.

    setting: what the audit was asked to do, for JSON. notes: sentences about this audit.
    """
    claim, through = finding.claim, finding.epsilon_through_the_family
    shown = f"epsilon >= {number(finding.epsilon)}{f' at delta = {claim.delta:g}' if claim.delta else ''} with "
    shown += f"{finding.confidence:.4g} confidence"
    if through is not None:
        shown += f", and >= {number(through)} through the claim's own trade-off function"
    shown += f"{', and' if finding.convicted else ';'} the claim is {number(claim.epsilon)}"
    if finding.convicted:
        shown += f"; convicted by {' and '.join(finding.convictions)}"

    def claimed(method: str, parameter: str) -> float:
        through_family = method != "epsilon_delta" and parameter == claim.family.parameter
        return claim.parameter if through_family else claim.epsilon

    return Report(
        title=title,
        finding=shown,
        convicted=finding.convicted,
        content={
            "setting": setting,
            **vars(finding),
            "convicted": finding.convicted,
            "noise": {"rows": finding.noise.rows, "p_value": finding.noise.p_value, "ratio": finding.noise.ratio},
            "claim": {
                "losses": str(claim.cost),
                "delta": claim.delta,
                "epsilon": claim.epsilon,
                claim.family.parameter: claim.parameter,
            },
            "epsilon_lower_bound": finding.epsilon,
            "epsilon_lower_bound_through_the_claims_family": through,
        },
        tables=(
            ReportTable.from_rows(
                f"lower bounds from {finding.trials} answers in each world, at {finding.confidence:.4g} confidence",
                ("method", "bounds", "at least", "claim", "guarantee"),
                [
                    (_METHODS[method], bound.parameter, bound.value, claimed(method, bound.parameter), bound.guarantee)
                    for method, bound in finding.bounds.items()
                ],
                "Where the claim is refuted, bounds through its family mean nothing." if finding.convicted else "",
            ),
        ),
        picture=_tradeoff_of_errors(claim, scores_in, scores_out),
        notes=(
            *notes,
            "A lower bound says what an attack has shown, not what a better one could show.",
            f"A claim that holds is convicted by one audit in {1 / (1 - finding.conviction_confidence):.0g} at most; "
            "only exact bounds convict.",
        ),
    )


def _tradeoff_of_errors(claim: ClaimedTradeoff, scores_in: Floats, scores_out: Floats) -> Picture:
    """Return what was observed at every threshold, beside the fewest errors that the claim allows."""
    thresholds, levels = np.unique(np.concatenate([scores_in, scores_out])), np.linspace(0, 1, 401)
    false_alarms = 1 - np.searchsorted(np.sort(scores_out), thresholds, side="left") / len(scores_out)
    missed = np.searchsorted(np.sort(scores_in), thresholds, side="left") / len(scores_in)

    def draw(axes: "Axes") -> None:
        axes.plot([0, 1], [1, 0], ":", color="grey", label="guessing")
        least = claim.family.tradeoff(claim.parameter, levels)
        axes.plot(levels, least, label="the fewest errors that the claim allows")
        axes.plot(np.append(false_alarms, 0.0), np.append(missed, 1.0), label="errors observed, by threshold")
        axes.set_aspect("equal")

    labels = ("false positive rate", "false negative rate")
    return Picture.with_axes(labels, draw, (5.2, 5.0))


_SHOWS_IN = {
    "sequence": "the sequence of releases, at",
    "movement": "the movement of",
    "parts": "two parts of the records, at",
    "strangers": "what strangers are shown, at",
    "clients": "what clients who have paid are shown, at",
}


def replay_report(replayed: Replayed, tried: int, unit: str | None) -> Report:
    """Return the report of an audit by replay. tried: how many records, or units, it was with and without."""
    whose = "records" if unit is None else f"units of {unit!r}"
    said = f"none of the {whose} shows outside the releases, and none moves one further than its noise is for"
    if not replayed.moved:
        said = f"training refused the records with or without each of the {whose}, and nothing was compared"
    if replayed.broken:
        first = replayed.broken[0]
        which = first.record or f"one of the {whose}"
        far = "" if first.moved is None else f": it moved by {first.moved:.6g}, and may by {first.most:.6g}"
        said = f"{which} shows in {_SHOWS_IN[first.what]} {first.where}{far}"
    moved = [(release, by, most) for release, (by, most) in replayed.moved.items()]
    broken = [(_SHOWS_IN[each.what], each.where, each.moved, each.most, each.record) for each in replayed.broken]
    tables = [ReportTable.from_rows("what moved", ("what", "moved by at most", "may move by"), moved)]
    if broken:
        columns = ("shows in", "where", "moved by", "may move by", "with and without")
        tables.append(ReportTable.from_rows("what is broken", columns, broken))
    return Report(
        title=f"Audit of a training by replay, with and without each of {tried} {whose}",
        finding=said,
        convicted=bool(replayed.broken),
        inconclusive=not (replayed.broken or replayed.moved),
        content={"tried": tried, "unit": unit, "broken": [asdict(each) for each in replayed.broken], "moved": moved},
        tables=tuple(tables),
        warnings=tuple(f"training refused the records {each}" for each in replayed.refused),
        notes=("this report has exact figures of your records: keep it to yourself",),
    )


def release_report(finding: ReleaseFinding) -> Report:
    """Return the report of a release's canaries."""
    verdict, canaries = finding.verdict, finding.verdict.canaries
    refuted = f"the canaries refute the certificate: {verdict.strongest}, p = {verdict.p_value:.2g}"
    return Report(
        title=f"Audit of the release {finding.name!r} ({finding.kind}) by {canaries.number:,} canaries of its own run",
        finding=f"{refuted}; {canaries.summary}" if verdict.convicts else canaries.summary,
        convicted=verdict.convicts,
        content={
            "canaries": canaries.model_dump(),
            "observed_mu": verdict.observed_mu,
            "guesses": verdict.guesses,
            "right_guesses": verdict.right,
            "pure_guesses_lower_bound_epsilon": finding.pure_guesses_epsilon,
            "p_values": verdict.p_values,
            "p_value": verdict.p_value,
            "false_alarm": verdict.false_alarm,
        },
        tables=(
            ReportTable.from_rows(
                f"epsilon at delta = {canaries.delta:g}",
                ("what", "epsilon", "assumes"),
                [
                    ("promised, of the model", canaries.promised_epsilon, "the certificate's proof"),
                    ("promised, of what canaries went through", canaries.observed_epsilon, "the same"),
                    ("at least, by mean scores", canaries.lower_bound_epsilon, "independent normal noise of any size"),
                    (
                        f"at least, by {verdict.right} right of {verdict.guesses} guesses",
                        canaries.guesses_lower_bound_epsilon,
                        "nothing of the noise; for mu-GDP",
                    ),
                    (
                        "at least, by the same guesses",
                        finding.pure_guesses_epsilon,
                        "nothing of the noise; for (epsilon, delta)",
                    ),
                ],
                f"Bounds with {canaries.confidence:g} confidence: one of 20 sound releases may show more.",
            ),
            ReportTable.from_rows(
                "tests of the claim",
                ("what is looked for", "p"),
                list(verdict.p_values.items()),
                f"It convicts where the least p, times their number, is at most {DOUBT:g}: of sound runs with a "
                f"probability of {verdict.false_alarm:.2g} at most.",
            ),
        ),
        notes=(
            "The coins are fair, and the canaries' numbers were released as they lie in the bundle: that is the "
            "owner's word, as the certificate's other numbers are.",
        ),
    )


def sampler_report(finding: SamplerFinding) -> Report:
    """Return the report of the sampler."""
    tests, times = finding.tests, finding.times
    groups: dict[tuple[str, str], list[ChiSquare]] = {}
    for law, test in tests:
        groups.setdefault((law, test.what), []).append(test)
    strongest = {name: min(test.correlations, key=lambda correlation: correlation.p) for name, test in times.items()}
    return Report(
        title="Audit of the noise sampler",
        finding="; ".join(finding.faults) or "nothing was found",
        convicted=bool(finding.faults),
        content={
            "distances": finding.distances,
            "promised_distance": DISTANCE,
            "chi_squares": [{"law": law, **vars(test)} for law, test in tests],
            "scales": [vars(test) for test in finding.scales],
            "false_alarm": finding.false_alarm,
            "repeated_words": finding.repeated,
            "changed_questions": finding.changed,
            "timings": times,
        },
        tables=(
            ReportTable.from_rows(
                "tables: exact total variation distance from the ideal law",
                ("table", "distance", "promised at most"),
                [(name, test, DISTANCE) for name, test in finding.distances.items()],
            ),
            ReportTable.from_rows(
                "draws: chi-square tests",
                ("law", "of", "tests", "cells", "smallest p", "convicts below"),
                [
                    (law, what, len(of), of[0].cells, min(test.p for test in of), number(finding.least_p, 2))
                    for (law, what), of in groups.items()
                ],
            ),
            ReportTable.from_rows(
                "how much is drawn, of what is promised",
                ("what draws", "numbers", "drawn/promised", "p", "convicts below"),
                [(test.what, test.numbers, test.ratio, test.p, number(finding.least_p, 2)) for test in finding.scales],
            ),
            ReportTable.from_rows(
                "time of a release of one row",
                ("mechanism", "releases", "median, us", "correlation", "with", "p", "t, extreme against zero"),
                [
                    (
                        *(name, test.releases, test.median_microseconds, number(correlated.correlation, 2)),
                        *(correlated.property, number(correlated.p, 2), number(test.t, 3)),
                    )
                    for (name, test), correlated in zip(times.items(), strongest.values(), strict=True)
                ],
                "The strongest of four correlations with the logits is shown. Where |t| was above 3, the mechanism was "
                "timed again, with twice as many releases, and the second look is shown.",
            ),
        ),
        picture=_p_values(finding),
        warnings=tuple(
            f"the times of {name!r} differ between extreme and zero logits (t = {test.t:.3g}): look again on a "
            "quiet machine"
            for name, test in times.items()
            if test.suspicious
        ),
        notes=finding.notes,
    )


def _p_values(finding: SamplerFinding) -> Picture:
    p_values = sorted(max(test.p, 1e-18) for _, test in finding.tests)

    def draw(axes: "Axes") -> None:
        expected = [(i + 0.5) / len(p_values) for i in range(len(p_values))]
        axes.loglog(expected, p_values, "o", label="chi-square tests")
        axes.loglog(expected, expected, ":", color="grey", label="expected of a right sampler")
        axes.axhline(finding.least_p, linestyle="--", color="tab:red", label="convicts below")

    labels = ("rank of the test, of all", "p-value")
    return Picture.with_axes(labels, draw)
