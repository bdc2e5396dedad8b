"""A pay-once model chosen among several, by noisy scores on records that were kept back. No option asks for it.

A keyed hash of each record, or of its privacy unit, says whether it validates, one in ONE_IN, or trains. Each candidate
is trained on the others, for an equal share of the price. How many records each gets right and wrong is released with
Gaussian noise for as much as all the training costs, and the candidate with the most right answers is kept, as it was
trained; the other models are deleted. A record does one or the other, so that the price of both is paid once:
`dpserve.training.pay_once.certificate.ChosenAmong` has the proof.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting import picorho
from dpserve.mechanisms.gaussian_vector import LEAST_PRICE, mu_for
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.bundles.drafts import draft_folder
from dpserve.training.bundles.sealing import load_sealed, save_sealed, write_folder
from dpserve.training.errors import TrainingError
from dpserve.training.inputs.lineage import owner_key
from dpserve.training.inputs.records import Records
from dpserve.training.inputs.sums import check_count
from dpserve.training.kinds import registry as kinds
from dpserve.training.kinds.kind import Job
from dpserve.training.kinds.loading import load_model
from dpserve.training.options import Options
from dpserve.training.pay_once.certificate import MOST_CANDIDATES, ChosenAmong, ReleaseCertificate
from dpserve.training.pay_once.model import ReleasedModel

ONE_IN = 6
"""One in so many records validates."""

_GRID = 2**28
_PURPOSE = b"dpserve: which records validate\0"
_OF_UNIT = b"dpserve: which units validate\0"


Candidate = tuple[Options, Job]
"""The options of a candidate, and its job."""


def with_option(candidate: Candidate, option: str, value: Any) -> Candidate:
    """Return a candidate whose kind has this option."""
    options, job = candidate
    return options.replaced(**{option: value}), job


def choose_release(
    options: Options,
    job: Job,
    option: str,
    values: Mapping[str, Any],
    randomness: Randomness,
    *,
    pay: Callable[[ReleaseCertificate], None],
    candidate: Callable[[Candidate, str, Any], Candidate] = with_option,
) -> ReleaseCertificate:
    """Train a candidate for each value of an option, for the job's price together; write the best into job.out.

    values: by their texts. randomness: for the scores' noise. pay: charges the lineage for the model, durably, or
    raises; nothing is written or told before. candidate: makes a candidate of one with its records and its share
    of the price; features that it buys for a part of that are in what the candidate costs. Raises TrainingError for
    a price that is too small for so many candidates, and what `kinds.train_and_save` raises.
    """
    share = _share(job.model_price, len(values))
    check_count(len(job.records))
    assert isinstance(job.records, Records)
    training, validating = parted(job.records, owner_key(job.state / "lineage.key"))
    n = None if job.n is None else max(1, job.n * (ONE_IN - 1) // ONE_IN)
    with draft_folder(job.state) as folder:
        models: list[ReleasedModel] = []
        for place, value in enumerate(values.values()):
            out = folder / str(place)
            own = replace(job, records=training, price=share, n=n, out=out)
            kinds.train_and_save(*candidate((options, own), option, value))
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


def _share(price: int, candidates: int) -> int:
    """Return what each candidate may cost, in picorho. Raises TrainingError."""
    if not 2 <= candidates <= MOST_CANDIDATES:
        raise TrainingError(f"a choice is among 2 to {MOST_CANDIDATES} candidates, not {candidates}")
    share = price // candidates
    if share < LEAST_PRICE:
        raise TrainingError(
            f"the price is too small for {candidates} candidates: each has an equal share, and costs at least rho = "
            f"{LEAST_PRICE / picorho.PICORHO_PER_RHO:g}"
        )
    return share


def keyed(records: Records, key: bytes) -> Iterator[bytes]:
    """Yield a keyed hash of each record alone, or of its privacy unit's name. key: the owner's secret.

    A record is its features and its label as 64-bit numbers. Raises TrainingError for units without names.
    """
    if records.units is None:
        for row, label in zip(records.X, records.y, strict=True):
            # 0.0 and -0.0 are the same number.
            content = (row + 0.0).astype("<f8").tobytes() + int(label).to_bytes(8, "little")
            yield hmac.digest(key, _PURPOSE + content, hashlib.sha256)
        return
    if records.units.names is None:
        raise TrainingError("the units have no names, which say whether they validate")
    of_unit = [hmac.digest(key, _OF_UNIT + name.tobytes(), hashlib.sha256) for name in records.units.names]
    yield from (of_unit[unit] for unit in records.units.of)


def parted(records: Records, key: bytes) -> tuple[Records, Records]:
    """Return the records that train, and those that validate: each by its own hash, or its unit's."""
    validates = np.array(
        [int.from_bytes(digest[:8], "little") % ONE_IN == 0 for digest in keyed(records, key)], dtype=bool
    )
    if validates.all():
        raise TrainingError("there are too few records to choose by: none is left to train on")
    return records.taken(~validates), records.taken(validates)


def score(model: ReleasedModel, records: Records) -> int:
    """Return right answers less wrong ones, each times its record's weight, in steps of 2^-28.

    Each row is asked in an array of its own: its term does not depend on the records beside it.
    """
    total = 0
    weights: Sequence[float] | NDArray[np.float64] = (
        np.ones(len(records)) if records.weights is None else records.weights
    )
    for index in range(len(records)):
        row = slice(index, index + 1)
        step = int(weights[index] * _GRID)
        answers = model.values(records.X[row].copy())
        total += step if answers.argmax() == records.y[index] else -step
    return total
