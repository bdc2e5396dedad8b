"""The report of an attack: a verdict in one sentence, every attack in one table, the ROC with the claim's curve."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from accounting.picorho import to_rho
from audit.membership.attack import Outcome
from audit.membership.claims import STEPS, Claim
from audit.membership.verdict import LOW_RATES, Found
from audit.reports import Picture, Report, Table, interval, number, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOWEST_DRAWN = 1e-4
_DRAWN_ATTACKS = 5
_CURVE_POINTS = 65


def report(outcome: Outcome, *, draw: bool = True) -> Report:
    """Return the page. draw: with the picture, for which matplotlib is needed."""
    return Report(
        title=f"membership-inference attack on {outcome.model['name']} ({served_as(outcome.model)})",
        verdict=sentence(outcome),
        convicted=outcome.convicted,
        inconclusive=outcome.inconclusive,
        content=content(outcome),
        tables=(_attacks(outcome), _claims(outcome), _spending(outcome)),
        pictures=(roc(outcome),) if draw else (),
        warnings=outcome.difference.warnings() + _more_warnings(outcome),
        notes=_notes(outcome),
    )


def served_as(model: Mapping[str, Any]) -> str:
    """The mechanism and its price in words."""
    price = model.get("price_per_row") or {}
    losses = price.get("losses") or "nothing a row"
    return f"{model.get('mechanism', 'one release')}, {model.get('mechanism_status', 'proven')}, at {losses}"


def sentence(outcome: Outcome) -> str:
    """The verdict."""
    judged, best = outcome.verdict, outcome.verdict.best
    if outcome.replays.averaging_is_free:
        return (
            f"CONVICTED: one row asked about {outcome.replays.times} times got {outcome.replays.answers} different "
            f"answers for rho = {number(to_rho(outcome.replays.charged))}, less than their price, so that "
            "its noise can be averaged away"
        )
    if outcome.charges.faults:
        return f"CONVICTED: {'; '.join(outcome.charges.faults)}; {_of_the_spending(outcome)}"
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
        return f"inconclusive: members and non-members cannot be compared; {found}; {claimed}"
    return f"CONVICTED: {found}, but {claimed}" if outcome.convicted else f"not convicted: {found}; {claimed}"


def _of_the_spending(outcome: Outcome) -> str:
    """What is claimed for what the accounts say was spent, whatever the answers should have cost."""
    total = outcome.verdict.total
    return (
        f"for what was actually spent, rho = {number(total.rho)}, TPR - FPR <= {number(total.advantage())} "
        f"(two steps: {number(total.advantage(STEPS))})"
    )


def _beyond(outcome: Outcome) -> str:
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


def content(outcome: Outcome) -> dict[str, Any]:
    """Everything, for JSON."""
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
        "attacks": [_found(one) for one in judged.found],
        "best": judged.best.attack,
        "roc": _curves(outcome),
        "epsilon_lower_bound": judged.best.epsilon,
        "corner": judged.best.corner,
        "pairs": judged.pairs,
        "claim": {
            "delta": judged.decision.delta,
            "of_one_decision": _claim(judged.decision),
            "of_everything_spent": _claim(judged.total),
            "advantage_bound_stated_by_the_service": [
                account["membership_advantage_bound"]["now"] for account in outcome.accounts
            ],
        },
        "spent": [account["spent"] for account in outcome.accounts],
    }


def _curves(outcome: Outcome) -> dict[str, Any]:
    """What `roc` draws, the best attack first: at each false positive rate the true positive rate within it."""
    rates = np.union1d(np.linspace(0, 1, _CURVE_POINTS), np.geomspace(_LOWEST_DRAWN, 1, _CURVE_POINTS))
    return {
        "false_positive_rates": rates,
        "attacks": [{"attack": one.attack, "true_positive_rates": _at(one, rates)} for one in _drawn(outcome)],
        "bound": outcome.verdict.decision.power(rates, STEPS),
    }


def _at(one: Found, rates: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    within = np.searchsorted(one.false_positive_curve, rates, side="right") - 1
    return one.true_positive_curve[np.maximum(within, 0)]


def _drawn(outcome: Outcome) -> list[Found]:
    judged = outcome.verdict
    ranked = sorted(judged.found, key=lambda one: (one is judged.best, one.selection_advantage), reverse=True)
    return ranked[:_DRAWN_ATTACKS]


def roc(outcome: Outcome) -> Picture:
    """The ROC of the best attacks, linear and log-log, under the curve that the claim does not let them cross."""

    def draw(figure: "Figure") -> None:
        linear, logarithmic = figure.subplots(1, 2)
        _draw(linear, outcome, np.linspace(0, 1, 513))
        _draw(logarithmic, outcome, np.geomspace(_LOWEST_DRAWN, 1, 513))
        logarithmic.set_xscale("log")
        logarithmic.set_yscale("log")
        logarithmic.set_xlim(_LOWEST_DRAWN, 1)
        logarithmic.set_ylim(_LOWEST_DRAWN, 1.05)
        linear.legend(fontsize="small", loc="lower right")

    caption = (
        f"{outcome.decided[0]} members and {outcome.decided[1]} non-members. If the claim holds, an attack reaches "
        "the shaded side of the black curve only by chance."
    )
    return picture(f"ROC of attacks on {outcome.model['name']}", caption, draw, inches=(11, 5))


def _draw(axes: "Axes", outcome: Outcome, rates: np.ndarray[Any, np.dtype[np.float64]]) -> None:
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


def _attacks(outcome: Outcome) -> Table:
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
        (
            "attack",
            "TPR-FPR",
            f"{judged.confidence:.0%}",
            "AUC",
            "1%",
            "0.1%",
            "prec.",
            "eps >=",
        ),
        rows,
        note="* the one that counts, chosen where thresholds are. 1%, 0.1%: TPR at this FPR; a dash where non-members "
        "are too few to see it. eps >=: lower bound of epsilon for replacing one record.",
    )


def _claims(outcome: Outcome) -> Table:
    judged = outcome.verdict
    stated = [account["membership_advantage_bound"]["now"] for account in outcome.accounts]
    return Table(
        "what is claimed" if not judged.decision.proven else "what is proven",
        (
            "of",
            "rho",
            "epsilon",
            "TPR-FPR <=",
            "eps, replaced",
            "TPR-FPR <=",
        ),
        (
            _claim_row(f"one decision, {outcome.releases} seen", judged.decision),
            _claim_row("all that was answered", judged.total),
        ),
        note=(
            f"At delta = {judged.decision.delta:g}. The service states TPR - FPR <= "
            f"{', '.join(number(bound) for bound in stated)} for what was spent. It is about adding or removing a "
            "record; the experiment replaces one, which is two steps."
        ),
    )


def _claim_row(what: str, claim: Claim) -> tuple[str, ...]:
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


def _spending(outcome: Outcome) -> Table:
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


def _more_warnings(outcome: Outcome) -> tuple[str, ...]:
    ran_out = tuple(f"ran out of budget, and used what was answered ({one})" for one in outcome.exhausted)
    return ran_out + outcome.cautions


def _notes(outcome: Outcome) -> tuple[str, ...]:
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


def _charged(outcome: Outcome) -> str:
    charges = outcome.charges
    if not charges.price:
        return "answers cost nothing more: the model was paid for once"
    last = "one row more than is left was refused" if charges.refused else "more is left than one request can overdraw"
    shared = {True: "; what the keys spend is shared", False: "; what the keys spend is not shared", None: ""}
    return (
        f"answers to {sum(charges.rows)} rows cost rho = {number(to_rho(sum(charges.rows) * charges.price))}, accounts "
        f"have spent rho = {number(to_rho(sum(charges.spent)))}; {last}{shared[charges.shared]}"
    )


def _found(one: Found) -> dict[str, Any]:
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


def _claim(claim: Claim) -> dict[str, Any]:
    return {
        "status": "proven" if claim.proven else "unproven",
        "rho": claim.rho,
        "epsilon": claim.epsilon(),
        "advantage_bound": claim.advantage(),
        "epsilon_for_replacing": claim.epsilon(STEPS),
        "advantage_bound_for_replacing": claim.advantage(STEPS),
    }
