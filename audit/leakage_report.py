"""The report of an attack on answers without a claim (`dpserve.audit.membership.leakage`)."""

from typing import TYPE_CHECKING, Any

from dpserve.audit.exposure_report import Groups, exposure_content, exposure_tables
from dpserve.audit.membership.leakage import Leakage, MeasuredAttack
from dpserve.audit.membership.verdict import LOW_RATES
from dpserve.audit.reports import Picture, Report, ReportTable, interval, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def leakage_report(leakage: Leakage, url: str, groups: Groups | None = None) -> Report:
    """Return the report: every attack in one table, single records, and the ROC of the best."""
    best, pairs, difference = leakage.best, leakage.pairs, leakage.difference
    decided = f"{leakage.decided} members and {leakage.decided} non-members"
    finding = (
        f"the best attack ({best.attack}) has TPR - FPR = {best.advantage:.3f} {interval(best.low, best.high)} at "
        f"{leakage.confidence:.0%} confidence; {pairs.right} of {pairs.guesses} guesses about pairs are right, which "
        f"shows epsilon >= {pairs.epsilon:.3f} at delta = 0 for replacing a record"
    )
    return Report(
        title=f"membership-inference attack on {url} (any model, without a claim)",
        finding=f"members and non-members cannot be compared; {finding}" if difference.uninformative else finding,
        convicted=False,
        inconclusive=difference.uninformative,
        without_claim=True,
        content={
            "decided": {"members": leakage.decided, "non_members": leakage.decided},
            "confidence": leakage.confidence,
            "attacks": [_content(attack) for attack in leakage.attacks],
            "best": best.attack,
            "epsilon_lower_bound": pairs.epsilon,
            "pairs": pairs,
            "same_distribution": difference,
        }
        | exposure_content(leakage.exposure, groups),
        tables=(
            ReportTable.from_rows(
                f"attacks on {decided}",
                ("attack", "TPR-FPR", f"{leakage.confidence:.0%}", "AUC", "1%", "0.1%"),
                [
                    (
                        ("* " if attack is best else "") + attack.attack,
                        f"{attack.advantage:+.3f}",
                        f"{attack.low:+.2f} {attack.high:+.2f}",
                        f"{attack.auc:.3f}",
                        *(number(rate, 3) for rate in reversed(attack.true_positive_rates)),
                    )
                    for attack in leakage.attacks
                ],
                "1%, 0.1%: the TPR at such an FPR, a dash where there are too few non-members to see it. "
                "*: counts, because it did best on the quarter of the candidates that chose its threshold.",
            ),
            *exposure_tables(leakage.exposure, groups),
        ),
        picture=Picture.with_axes(("FPR", "TPR"), lambda axes: _draw(axes, best)),
        warnings=difference.warnings(),
        notes=(
            "nothing was claimed, so nothing can be convicted; what was found is a lower bound of what the model tells",
            "an attack that finds nothing proves nothing: shadow models of the same training may find more",
        ),
    )


def _content(attack: MeasuredAttack) -> dict[str, Any]:
    return {
        "attack": attack.attack,
        "advantage": attack.advantage,
        "interval": [attack.low, attack.high],
        "auc": attack.auc,
        "tpr_at_low_fpr": {
            f"{rate:g}": value for rate, value in zip(LOW_RATES, attack.true_positive_rates, strict=True)
        },
        "errors": attack.errors,
    }


def _draw(axes: "Axes", best: MeasuredAttack) -> None:
    axes.plot(best.false_positive_curve, best.true_positive_curve, label=best.attack)
    axes.plot([0, 1], [0, 1], color="grey", linestyle="--", label="guessing")
