"""The paper's measures: accuracy loss (Eq. 31) and privacy leakage (Eq. 32).

The membership attack itself is passed in: whatever decides, from answers and true labels, who was trained on.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats, Labels


class MembershipAttack(Protocol):
    """A black-box attack, already prepared (on shadow models, say)."""

    def decide(self, answers: Floats, y: Labels) -> NDArray[np.bool_]:
        """Whether each record was trained on: (n,). answers: (n, C), the service's; y: (n,), the true labels."""
        ...


def accuracy(answers: Floats, y: Labels) -> float:
    """The share of answers (n, C) whose largest entry is the true label; the first of equal entries counts."""
    if answers.ndim != 2 or y.shape != (len(answers),) or len(y) == 0:
        raise ValueError(f"answers {answers.shape} do not fit labels {y.shape}")
    return float((answers.argmax(axis=1) == y).mean())


def accuracy_loss(private: float, baseline: float) -> float:
    """Eq. 31: 1 - Test_Acc_DP / Test_Acc_Baseline. Negative where the private answers are the better ones."""
    if not 0 < baseline <= 1 or not 0 <= private <= 1:
        raise ValueError(f"accuracies lie in [0, 1] and the baseline's above 0, not {private} and {baseline}")
    return 1 - private / baseline


def privacy_leakage(members: NDArray[np.bool_], non_members: NDArray[np.bool_]) -> float:
    """Eq. 32: the attack's true positive rate minus its false positive rate.

    members, non_members: what the attack decided about records that were and were not trained on.
    """
    if len(members) == 0 or len(non_members) == 0:
        raise ValueError("the attack must have decided about at least one member and one non-member")
    return float(members.mean() - non_members.mean())


def attack_leakage(
    attack: MembershipAttack, members: tuple[Floats, Labels], non_members: tuple[Floats, Labels]
) -> float:
    """Eq. 32 for an attack on the answers and labels of members and of non-members."""
    return privacy_leakage(attack.decide(*members), attack.decide(*non_members))


def leakage_bound(epsilon: float, baseline_leakage: float = 1.0) -> float:
    """The bound that the paper draws: e^epsilon - 1, cut at the non-private model's leakage (Section 5.3).

    The tight one for pure epsilon-DP is (e^epsilon - 1)/(e^epsilon + 1); this one is the paper's.
    """
    return min(float(np.expm1(min(epsilon, 50.0))), baseline_leakage)
