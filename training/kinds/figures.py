"""Figures of a certificate, in words: what `Kind.figures` of several kinds have in common."""

from dpserve.accounting.losses import Cost
from dpserve.accounting.picorho import to_rho
from dpserve.training.bundles.certificate import Convexified, ProvenCertificate
from dpserve.training.features.maps import Bins, Encoder, Quantiles
from dpserve.training.inputs.columns import encodings_among
from dpserve.training.kinds.outputs import Outputs
from dpserve.training.pay_once.certificate import ReleaseCertificate

Figures = list[tuple[str, str]]
"""The name and the value of each figure."""


def pay_once_figures(certificate: ReleaseCertificate, outputs: Outputs) -> Figures:
    """Return what a pay-once model's certificate says, with every number that is its kind's own."""
    common = set(ReleaseCertificate.model_fields)
    own = {name: value for name, value in certificate.model_dump(mode="json").items() if name not in common}
    return [
        ("pay-once model", certificate.release),
        *features_figures(certificate),
        *choice_figures(certificate),
        *sets_figures(certificate),
        *canary_figures(certificate),
        *convexified_figures(getattr(certificate, "convexified", None)),
        ("classes", str(len(certificate.classes)))
        if outputs.classes is not None
        else ("answers", ", ".join(f"{field.name}: {field.sentence}" for field in outputs.fields)),
        *(
            (name.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value))
            for name, value in own.items()
            if not isinstance(value, list | dict)
        ),
    ]


def sets_figures(certificate: ReleaseCertificate) -> Figures:
    """Return what prediction sets take, at usual coverages; nothing where there are none."""
    if (sets := certificate.prediction_sets) is None:
        return []
    counted = "all records together" if sets.by == "all" else "the records of each class"
    least = [(coverage, sets.least(coverage, len(certificate.classes))) for coverage in (800, 900, 950)]
    return [
        (
            "prediction sets",
            f"with a coverage of {counted}; one in {sets.one_in} was held back, for mu = {sets.mu:.4g}",
        ),
        *(
            (
                f"a class is in a set for {coverage / 1000:g}, released",
                f"from a probability of {each.min():.4g} on"
                if each.min() == each.max()
                else f"from a probability of {each.min():.4g} to {each.max():.4g} on, by class",
            )
            for coverage, each in least
        ),
    ]


def canary_figures(certificate: ReleaseCertificate) -> Figures:
    """Return what canaries of the same run show; nothing where there were none."""
    if (canaries := certificate.canaries) is None:
        return []
    return [
        (f"epsilon at delta = {canaries.delta:g}, by {canaries.number:,} canaries", canaries.summary),
        ("the releases that canaries went through", f"epsilon = {canaries.observed_epsilon:.4g} of that"),
        ("with nothing assumed of the noise", f"epsilon >= {canaries.guesses_lower_bound_epsilon:.4g}"),
        ("which canaries took part, SHA-256", canaries.commitment[:16] + "..."),
    ]


def convexified_figures(convexity: Convexified | None) -> Figures:
    """Return what the convexified objective is and costs; nothing for the sum of losses."""
    if convexity is None:
        return []
    return [
        ("alpha", f"{convexity.alpha:g}"),
        ("least number of records n_min, declared", f"{convexity.least_records:,}"),
        ("lambda, tau over n_min", f"{convexity.lam:g}, {convexity.tolerance:g}"),
        ("largest gradient rho, share s of a record", f"{convexity.gradient_norm:.6g}, {convexity.largest_share:.6g}"),
        ("largest norm r, loss B at a minimiser", f"{convexity.largest_norm:.6g}, {convexity.largest_loss:.6g}"),
        ("Delta_W of the plain sum of losses", f"{convexity.sum_weight_sensitivity:.6g}"),
        ("price of alpha: Delta_W over that", f"{convexity.price_of_alpha:.4g}"),
    ]


def choice_figures(certificate: ProvenCertificate) -> Figures:
    """Return how options were chosen by results on the records; nothing where none was."""
    if (among := getattr(certificate, "chosen_among", None)) is not None:
        costs = [Cost.parse(cost).rho for cost in among.costs]
        shares = ", ".join(
            f"{each} ({float(cost / sum(costs)):.1%} of their cost, score {score:,.0f})"
            for each, cost, score in zip(among.candidates, costs, among.scores, strict=True)
        )
        return [
            (f"{among.option.replace('_', '-')} was chosen", f"{among.chosen}, among {shares}, all paid for"),
            ("by noisy scores", f"{among.by}, of standard deviation {among.vector.standard_deviation:.3g}"),
            ("records that validate", among.validating),
        ]
    return []


def features_figures(certificate: ProvenCertificate) -> Figures:
    """Return what is public about the features."""
    feature_map, most = certificate.feature_map, certificate.feature_map.declared.dimension
    up_to = "up to " if feature_map.losses else ""
    figures = [("features", f"{len(certificate.feature_names)} -> {feature_map.kind}, {up_to}{most} coordinates")]
    if isinstance(feature_map, Encoder):
        figures.append(("encoder, declared public", f"ONNX, SHA-256 {feature_map.model_sha256[:16]}..."))
    encodings = encodings_among(feature_map.columns).values()
    figures += [
        ("texts' encoder, declared public", f"{encoding.name}, SHA-256 {encoding.sha256}") for encoding in encodings
    ]
    if each := [f"{column.name} ({column.kind})" for column in feature_map.columns]:
        figures.append(("columns, declared public", f"{len(each)}: " + shortened(", ".join(each))))
    if isinstance(feature_map, Quantiles) and (released := feature_map.released) is not None:
        counted = f"{released.cells:,} cells of {len(released.cuts)} numbers at {released.levels} levels"
        # What was bought of a pay-once model is listed with shares.
        once = isinstance(certificate, ReleaseCertificate)
        cost = "" if once else f", rho = {to_rho(released.cost.picorho):g} of the cost"
        figures += [
            ("cuts at noisy quantiles, paid for", counted + cost),
            ("noise on each count", f"{released.vector.standard_deviation:.3g}, {released.law}"),
        ]
    if isinstance(feature_map, Bins) and feature_map.crosses:
        names = [column.name for column in feature_map.columns] or certificate.feature_names
        crosses = ", ".join(f"{names[one]}:{names[other]}" for one, other in feature_map.crosses)
        figures.append(("crosses, declared public", shortened(crosses)))
    if isinstance(feature_map, Bins) and feature_map.cross_buckets:
        pairs = f"{len(feature_map.paired[0]):,} pairs of columns, hashed to {feature_map.cross_buckets:,}"
        figures.append(("crosses, hashed", pairs + " buckets"))
    return figures


def shortened(text: str) -> str:
    """Return a text of at most 60 characters."""
    return text if len(text) <= 60 else text[:57] + "..."
