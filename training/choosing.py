"""A pay-once model chosen among several, by noisy scores on records that were kept back.

A keyed hash of each record, or of its privacy unit, says whether it validates, one in
`training.inputs.validating.ONE_IN`, or trains. Each candidate is trained on the others, for an equal share of the
price. How many records each gets right and wrong is released with Gaussian noise for as much as all the training costs,
and the candidate with the most right answers is kept, as it was trained; the other models are deleted. A record does
one or the other, so that the price of both is paid once: `training.pay_once.certificate.ChosenAmong` has the proof.

Right answers and not clipped log losses, which chose no better in seven comparisons on MNIST and Adult
(docs/releases.md has what a choice is worth).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accounting import picorho
from accounting.messages import OptionName, joined
from mechanisms.gaussian_vector import LEAST_PRICE, mu_for, whole_picorho
from mechanisms.randomness import Randomness
from training.bundles.sealing import load_sealed, save_sealed, write_folder
from training.drafts import draft_folder
from training.errors import TrainingError, WrongOption
from training.feature_choice import choosable_features, choosable_options
from training.inputs.lineage import owner_key
from training.inputs.records import Records
from training.inputs.sums import check_count
from training.inputs.validating import ONE_IN, keyed
from training.kinds import registry as kinds
from training.kinds.kind import Job
from training.kinds.loading import load_model
from training.pay_once.certificate import MOST_CANDIDATES, ChosenAmong, ReleaseCertificate
from training.pay_once.model import ReleasedModel

_GRID = 2**28


def with_option(job: Job, option: str, value: Any) -> Job:
    """Return the job of a candidate whose kind has this option."""
    return replace(job, options={**job.options, option: value})


def choose_release(
    kind: str,
    job: Job,
    option: str,
    values: Mapping[str, Any],
    randomness: Randomness,
    *,
    pay: Callable[[ReleaseCertificate], None],
    candidate: Callable[[Job, str, Any], Job] = with_option,
) -> ReleaseCertificate:
    """Train a candidate for each value of an option, for the job's price together; write the best into job.out.

    values: by their texts. randomness: for the scores' noise. pay: charges the lineage for the model, durably, or
    raises; nothing is written or told before. candidate: makes a candidate's job of one with its records and its share
    of the price; features that it buys for a part of that are in what the candidate costs. Raises WrongOption for an
    option that is not chosen among so and for a price that is too small for so many candidates, and what `kinds.train`
    raises.
    """
    share = check(kind, job.options, option, values)
    check_count(len(job.records))
    training, validating = parted(job.records, owner_key(job.state / "lineage.key"))
    options = {**job.options, "price": share}
    if "records_declared" in options:
        options["records_declared"] = max(1, options["records_declared"] * (ONE_IN - 1) // ONE_IN)
    with draft_folder(job.state) as folder:
        models: list[ReleasedModel] = []
        for place, value in enumerate(values.values()):
            out = folder / str(place)
            made = candidate(replace(job, records=training, options=options, out=out), option, value)
            kinds.train_and_save(kind, made)
            models.append(load_model(out))
        costs = [model.certificate.cost_as_candidate(option) for model in models]
        scores_mu = mu_for(picorho.budget(sum(cost.rho for cost in costs)))
        among = ChosenAmong(
            option=option,
            candidates=tuple(values),
            costs=tuple(map(str, costs)),
            scores=(0.0,) * len(values),
            scores_mu=scores_mu,
        )
        exact = np.array([score(model, validating) for model in models]) / _GRID
        among = among.model_copy(update={"scores": tuple(among.vector.release(exact, randomness).tolist())})
        place = among.candidates.index(among.chosen)
        certificate, tensors = load_sealed(folder / str(place), type(models[place].certificate))
        written = save_sealed(folder / "chosen", tensors, certificate.chosen_by(among))
        pay(written)
        write_folder(job.out, {file.name: file.read_bytes() for file in (folder / "chosen").iterdir()})
    return written


def check(kind: str, options: Mapping[str, Any], option: str, values: Mapping[str, Any]) -> int:
    """Return what each candidate may cost, in picorho. Raises WrongOption."""
    choosable = choosable_options(kinds.kind_named(kind))
    if option not in choosable:
        if not choosable:
            raise WrongOption("choose", f"has nothing to choose for {kind}")
        names = joined(map(OptionName, choosable), ", ")
        raise WrongOption("choose", f"chooses for {kind} among values of " + names + ", not of " + OptionName(option))
    if option in options:
        raise WrongOption(option, "is what is chosen: leave it out")
    if "step_noise" in options:
        reason = "does not go with " + OptionName("choose") + ": candidates share " + OptionName("price") + " equally"
        raise WrongOption("step_noise", reason)
    if not 2 <= len(values) <= MOST_CANDIDATES:
        raise WrongOption("choose", f"takes 2 to {MOST_CANDIDATES} values, each once")
    if "price" not in options:
        raise WrongOption("price", "is needed: what all candidates cost together")
    for value in values.values():
        kinds.check(kind, options if option in choosable_features() else {**options, option: value})
    price = options["price"]
    share = (price if isinstance(price, int) else whole_picorho(price)) // len(values)
    if share < LEAST_PRICE:
        raise WrongOption(
            "price",
            f"is too small for {len(values)} candidates: each has an equal share, and costs at least rho = "
            f"{LEAST_PRICE / picorho.PICORHO_PER_RHO:g}",
        )
    return share


def parted(records: Records, key: bytes) -> tuple[Records, Records]:
    """Return the records that train, and those that validate: each by its own hash, or its unit's."""
    validates = np.array([int.from_bytes(each[:8], "little") % ONE_IN == 0 for each in keyed(records, key)], dtype=bool)
    if validates.all():
        raise TrainingError(
            "there are too few records to choose by: none is left to train on. Train without " + OptionName("choose")
        )
    return records.taken(~validates), records.taken(validates)


def score(model: ReleasedModel, records: Records) -> int:
    """Return right answers less wrong ones, each times its record's weight, in steps of 2^-28.

    Each row is asked in an array of its own: its term does not depend on the records beside it.
    """
    total, kind = 0, kinds.kind_of(model)
    weights: Sequence[float] | NDArray[np.float64] = (
        np.ones(len(records)) if records.weights is None else records.weights
    )
    for index in range(len(records)):
        row = slice(index, index + 1)
        step = int(weights[index] * _GRID)
        (is_right,) = kind.right_rows(model, records.X[row].copy(), records.y[row])
        total += step if is_right else -step
    return total
