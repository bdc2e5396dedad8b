"""An audit of a pay-once model by the canaries of the run that made it, and of several by each other's noise.

The judgement is `dpserve.training.pay_once.canary_verdict.judged`, which training makes, too, before it writes a
bundle. Here are a bound for comparison, and a test that needs two bundles: whether their noise was drawn twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpserve.audit.membership.verdict import epsilon_of_guesses
from dpserve.training.errors import TrainingError
from dpserve.training.pay_once.canaries import CONFIDENCE, DELTA, CanaryRun
from dpserve.training.pay_once.canary_verdict import CanaryVerdict, distance_of, judged, shared_noise


@dataclass(frozen=True)
class ReleaseFinding:
    """The finding about a release. verdict: of its canaries, with the tests against other bundles among its p-values.

    pure_guesses_epsilon: the bound for (epsilon, delta).
    """

    name: str
    kind: str
    verdict: CanaryVerdict
    pure_guesses_epsilon: float


def audit_release(model: Any, others: Sequence[Any] = ()) -> ReleaseFinding:
    """Judge a loaded pay-once model by its canaries. others: models whose noise should be other noise.

    Raises TrainingError for a model without canaries, and for one that is named twice.
    """
    run, certificate = _run_of(model), model.certificate
    parts = certificate.canary_parts()
    verdict = judged(certificate.canaries, parts, run, certificate.whole_cost())
    p_values, slack, known = dict(verdict.p_values), verdict.slack, {certificate.model_id}
    for other in others:
        if other.certificate.model_id in known:
            raise TrainingError(
                f"{other.certificate.name} {other.certificate.model_id[:8]} is named twice, and its noise is its own: "
                "name another model"
            )
        known.add(other.certificate.model_id)
        more = other.certificate.canary_parts()
        against = shared_noise(run, _run_of(other), parts, more)
        p_values[f"the noise of {other.certificate.name} {other.certificate.model_id[:8]}"] = against
        slack += distance_of(more)
    verdict = replace(verdict, p_values=p_values, slack=slack)
    bound = epsilon_of_guesses(certificate.canaries.number, verdict.guesses, verdict.right, CONFIDENCE, DELTA)
    return ReleaseFinding(certificate.name, certificate.kind_name, verdict, bound)


def _run_of(model: Any) -> CanaryRun:
    run: CanaryRun | None = getattr(model, "canaries", None)
    if run is None:
        raise TrainingError(
            f"{model.certificate.name} was trained without canaries, and its run cannot be asked any more: train with "
            "some, or attack a service of it"
        )
    return run
