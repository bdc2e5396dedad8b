"""The training losses: cross-entropy, and the two readings of the paper's convexified loss.

Both readings are (1/alpha) ln mean exp(alpha l) over a mini-batch (Eq. 22), computed as log-sum-exp so that no power
overflows:

- `per-record`, as printed: the mean is over the records of the batch, of exp(alpha l_i).
- `per-record-and-class`: the mean is over the records and the classes, of exp(-alpha y_c ln p_c), y being one-hot. The
  C - 1 other classes contribute exp(0) = 1, so that a record's term is ((C - 1) + exp(alpha l_i)) / C. It is what the
  formula becomes where the elementwise product y ln p is not summed over the classes before the exponential, as in
  the authors' published code. It limits how much a record that is already fitted can be forgotten: the constant term
  keeps the weight of a batch's worst record below what the first reading gives it.

As alpha tends to 0 the first tends to the mean cross-entropy and the second to that divided by C.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from training.published.setting import Objective


def record_losses(logits: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy l_i = -ln p_{y_i} of each record. logits: (n, C); y: (n,); result: (n,)."""
    return -log_softmax(logits, dim=-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def batch_loss(losses: Tensor, classes: int, objective: Objective, alpha: Tensor) -> Tensor:
    """The loss of one mini-batch. losses: (n,), of its records; alpha: a positive scalar, unused by cross-entropy."""
    if objective == "cross-entropy":
        return losses.mean()
    exponents = alpha * losses
    if objective == "per-record-and-class":
        others = torch.full_like(exponents, math.log(classes - 1))
        exponents = torch.logaddexp(exponents, others) - math.log(classes)
    return (torch.logsumexp(exponents, dim=-1) - math.log(losses.shape[-1])) / alpha
