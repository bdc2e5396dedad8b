"""Training by DP-SGD on private records."""

from dataclasses import dataclass, replace

import numpy as np
from pydantic import ValidationError

from dpserve.accounting import gaussian_envelope
from dpserve.accounting.arrays import Floats, Singles
from dpserve.accounting.faults_in_words import in_words
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.bundles.certificate import DeclaredRecords
from dpserve.training.errors import TrainingError
from dpserve.training.features.maps import FeatureMap
from dpserve.training.features.rows import MappedRows
from dpserve.training.fields import NAME
from dpserve.training.fitting.network import check_shards
from dpserve.training.fitting.unit_rows import Directions, rows_of
from dpserve.training.inputs.records import AnyRecords, Records
from dpserve.training.inputs.sums import ROWS, check_count, of_rows
from dpserve.training.kinds.dpsgd import steps
from dpserve.training.kinds.dpsgd.certificate import DpSgdCertificate, NetworkBeside
from dpserve.training.kinds.dpsgd.choices import Choices
from dpserve.training.kinds.dpsgd.model import DpSgdModel
from dpserve.training.pay_once import chain
from dpserve.training.pay_once.canaries import Canaries, Coins
from dpserve.training.pay_once.chain import PublicNumbers
from dpserve.training.pay_once.releases import Release
from dpserve.training.watchers import OnShare


@dataclass(frozen=True)
class DpSgdRecipe:
    """The public choices of a training run: the model's name, its feature map, how it is trained, and what it may cost.

    price: what all of it may cost, in picorho. noise_multiplier: of a step; None for the least that the price allows.
    before: what was released for the feature map.
    """

    name: str
    feature_map: FeatureMap
    choices: Choices
    price: int
    noise_multiplier: float | None = None
    before: tuple[Release, ...] = ()
    certificate_type: type[DpSgdCertificate] = DpSgdCertificate

    def __post_init__(self) -> None:
        """Refuse what no certificate could be made for."""
        if not NAME.fullmatch(self.name):
            raise TrainingError(
                f"a model is named with letters, digits, '.', '_' and '-', at most 64, not {self.name!r}"
            )


def certify(
    recipe: DpSgdRecipe,
    declared: DeclaredRecords,
    lineage: str,
    unit: str | None = None,
    canaries: Canaries | None = None,
) -> DpSgdCertificate:
    """Return the certificate of a run before it is made: from public choices alone.

    unit: the column of privacy units; then it is units that join steps, and that records_declared counts.
    canaries: those that join the steps.

    Raises TrainingError where there is none: for choices out of range, and for noise that costs more than the price.
    """
    choices = recipe.choices
    try:
        numbers = PublicNumbers(len(declared.classes), recipe.feature_map, choices.records_declared, choices)
        releases = chain.divided(recipe.certificate_type.STEPS, recipe.price, numbers)
        mus = {release.name: release.mu for release in releases}
        certificate = recipe.certificate_type.fresh(
            recipe.name,
            declared,
            recipe.feature_map,
            lineage,
            unit=unit,
            releases=(*recipe.before, *releases),
            noise_multiplier=_noise(recipe, mus[steps.NOISY_STEPS.name]),
            beside=_beside(choices, mus.get(steps.NETWORK_STEPS.name)),
            canaries=canaries,
            **choices.as_fields(),
        )
        certificate.derived_cost()
        certificate.canary_parts()
    except ValidationError as error:
        first = error.errors()[0]
        where = str(first["loc"][0]).replace("_", " ") if first["loc"] else "the choices"
        raise TrainingError(f"{where} {in_words(first)}") from error
    except ValueError as error:
        raise TrainingError(str(error)) from error
    return certificate


def _beside(choices: Choices, mu: float | None) -> NetworkBeside | None:
    """Return the network beside the head, with the least noise that its steps' mu allows; None without one."""
    if choices.beside is None or mu is None:
        return None
    chosen = choices.beside
    return NetworkBeside(
        hidden=chosen.hidden,
        first_weights_seed=chosen.first_weights_seed,
        sampling_rate=chosen.sampling_rate,
        noise_multiplier=gaussian_envelope.least_noise(mu, chosen.sampling_rate, choices.steps),
        learning_rate=chosen.learning_rate,
    )


def _noise(recipe: DpSgdRecipe, mu: float) -> float:
    """Return the noise multiplier, the owner's or the least. Raises TrainingError where the owner's is too little."""
    rate, count, noise = recipe.choices.sampling_rate, recipe.choices.steps, recipe.noise_multiplier
    if noise is not None and gaussian_envelope.covers(mu, noise, rate, count):
        return noise
    least = gaussian_envelope.least_noise(mu, rate, count)
    if noise is not None:
        raise TrainingError(
            f"{count} steps at sampling rate {rate:g} with noise multiplier {noise:g} cost more than the budget of "
            f"mu = {mu:.4g}: it needs a noise multiplier of {least:.4g}"
            + ("" if recipe.choices.beside is None else ", or less without the network beside it (hidden = 0)")
        )
    return least


def directions_of(X: Floats, feature_map: FeatureMap) -> Singles:
    """Return the records' rows, mapped and of length 1 or a hair less: (n, D), each a function of its record alone."""
    return Directions(MappedRows(feature_map))(X)


def train_dpsgd(
    records: AnyRecords,
    recipe: DpSgdRecipe,
    lineage: str,
    randomness: Randomness,
    report: OnShare = lambda _, __: None,
    directions: Singles | None = None,
    canaries: int | None = None,
) -> DpSgdModel:
    """Train a model by DP-SGD. The digest in its certificate is zero until `save_dpsgd` has written the weights.

    directions: what `directions_of` returns for these records and the recipe's map, where it is known already.
    canaries: how many there are. report: as for `chain.run`.
    Raises TrainingError for choices that have no certificate, and for more records than are covered, before a record
    is touched; and where canaries refute the certificate.
    """
    check_count(len(records))
    coins = None if canaries is None else Coins.drawn(canaries, randomness)
    certified = None if coins is None else coins.certified()
    certificate = certify(recipe, records.declaration, lineage, records.unit, certified)
    tensors, centre = recipe.feature_map.public_tensors(), np.zeros(recipe.feature_map.dimension)
    model = DpSgdModel(certificate, tuple(np.empty(0) for _ in certificate.branches), centre, tensors)
    if directions is None:
        mapped, rows = records.sums, rows_of(recipe.feature_map)
    else:
        assert isinstance(records, Records)  # of which all rows are mapped
        mapped, rows = of_rows(directions, records.y), ROWS
    check_shards(mapped)
    begun = steps.Training(
        records, model, mapped, rows, coins, lambda name, done: report(name, done / certificate.steps)
    )
    model = chain.run(certificate.STEPS, begun, certificate, randomness, report).model
    return replace(model, certificate=model.certificate.with_canaries(model.canaries))
