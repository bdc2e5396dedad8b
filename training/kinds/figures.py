"""Figures of a certificate, in words: what `Kind.figures` of several kinds have in common."""

from accounting.losses import Cost
from accounting.picorho import to_rho
from training.bundles.certificate import Convexified, ProvenCertificate
from training.features.maps import Bins, Encoder
from training.pay_once.certificate import ReleaseCertificate

Figures = list[tuple[str, str]]
"""The name and the value of each figure."""


def pay_once_figures(certificate: ReleaseCertificate) -> Figures:
    """Return what a pay-once model's certificate says, with every number that is its kind's own."""
    common = set(ReleaseCertificate.model_fields)
    own = {name: value for name, value in certificate.model_dump(mode="json").items() if name not in common}
    return [
        ("pay-once model", certificate.release),
        *features_figures(certificate),
        *choice_figures(certificate),
        *convexified_figures(getattr(certificate, "convexified", None)),
        ("classes", str(len(certificate.classes))),
        *(
            (name.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value))
            for name, value in own.items()
            if not isinstance(value, list | dict)
        ),
    ]


def convexified_figures(told: Convexified | None) -> Figures:
    """Return what the convexified objective is and costs; nothing for the sum of losses."""
    if told is None:
        return []
    return [
        ("alpha", f"{told.alpha:g}"),
        ("least number of records n_min, declared", f"{told.least_records:,}"),
        ("lambda, tau over n_min", f"{told.lam:g}, {told.tolerance:g}"),
        ("largest gradient rho, share s of a record", f"{told.gradient_norm:.6g}, {told.largest_share:.6g}"),
        ("largest norm r, loss B at a minimiser", f"{told.largest_norm:.6g}, {told.largest_loss:.6g}"),
        ("Delta_W of the plain sum of losses", f"{told.sum_weight_sensitivity:.6g}"),
        ("price of alpha: Delta_W over that", f"{told.price_of_alpha:.4g}"),
    ]


def choice_figures(certificate: ProvenCertificate) -> Figures:
    """Return how options were chosen by results on the records; nothing where none was."""
    if (among := getattr(certificate, "chosen_among", None)) is not None:
        shares = ", ".join(
            f"{each} (rho {float(Cost.parse(cost).rho):.4g}, score {score:,.0f})"
            for each, cost, score in zip(among.candidates, among.costs, among.scores, strict=True)
        )
        return [
            (f"{among.option.replace('_', '-')} was chosen", f"{among.chosen}, among {shares}, all paid for"),
            ("by noisy scores", f"{among.by}, of standard deviation {among.vector.standard_deviation:.3g}"),
            ("records that validate", among.validating),
        ]
    if (choice := certificate.choice) is None:
        return []
    candidates = ", ".join(f"{lam:g}" for lam in choice.lams)
    return [("chosen on the records", f"from {candidates}, for rho = {to_rho(choice.cost.picorho):g} besides")]


def features_figures(certificate: ProvenCertificate) -> Figures:
    """Return what is public about the features."""
    feature_map = certificate.feature_map
    figures = [
        ("features", f"{len(certificate.feature_names)} -> {feature_map.kind}, {feature_map.dimension} coordinates")
    ]
    if isinstance(feature_map, Encoder):
        figures.append(("encoder, declared public", f"ONNX, SHA-256 {feature_map.model_sha256[:16]}..."))
    if each := [f"{column.name} ({column.kind})" for column in feature_map.columns]:
        figures.append(("columns, declared public", f"{len(each)}: " + shortened(", ".join(each))))
    if isinstance(feature_map, Bins) and feature_map.crosses:
        names = [column.name for column in feature_map.columns] or certificate.feature_names
        crosses = ", ".join(f"{names[one]}:{names[other]}" for one, other in feature_map.crosses)
        figures.append(("crosses, declared public", shortened(crosses)))
    return figures


def shortened(text: str) -> str:
    """Return a text of at most 60 characters."""
    return text if len(text) <= 60 else text[:57] + "..."
