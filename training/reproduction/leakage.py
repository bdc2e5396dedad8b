"""Priv_Leak (Eq. 32): shadow models on the records that a repeat does not use, and the attack that learns from them.

Section 3.3: k shadow models of the target's kind, each trained on n records and asked about them and about n others;
the attack learns from their answers, without noise, and decides about every model's. One is prepared for each repeat.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from mechanisms.published import softmax
from training.data.sampling import two_disjoint_sets
from training.published.batched import Assignment, stacked_logits, train_stack
from training.published.setting import Recipe
from training.reproduction import measures, printed
from training.reproduction.measures import AttackTraining, KnownAnswers, MembershipAttack
from training.reproduction.results import Plan
from training.reproduction.samples import Samples
from training.reproduction.seeded import derived_seed

Floats = NDArray[np.float64]


@dataclass(eq=False)
class Attacks:
    """The attacks of all repeats, prepared when the first one is needed."""

    plan: Plan
    samples: Samples
    training: AttackTraining
    progress: Callable[[str, float], None] = lambda _, __: None
    _prepared: Sequence[MembershipAttack] = field(default=(), init=False)

    @property
    def name(self) -> str:
        """What a stored leakage depends on."""
        return f"{self.training.name}, {self._shadow_models} shadow models"

    def leakage(self, repeat: int, members: Floats, non_members: Floats) -> float:
        """Eq. 32 of answers (n, C) about the repeat's training set and test set."""
        y, samples = self.samples.data.y, self.samples
        return measures.attack_leakage(
            self._attack(repeat), (members, y[samples.train[repeat]]), (non_members, y[samples.test[repeat]])
        )

    @property
    def _shadow_models(self) -> int:
        return printed.SHADOW_MODELS[self.plan.dataset]

    def _attack(self, repeat: int) -> MembershipAttack:
        if not self._prepared:
            known = [self._known_answers(one) for one in range(self.plan.repeats)]
            seeds = [derived_seed(self.plan.seed, "attack", str(one)) for one in range(self.plan.repeats)]
            self._prepared = self.training.train(known, seeds, lambda share: self.progress("attack networks", share))
        return self._prepared[repeat]

    def _known_answers(self, repeat: int) -> KnownAnswers:
        plan, data, count = self.plan, self.samples.data, self._shadow_models
        free = np.ones(len(data.y), dtype=np.bool_)
        free[self.samples.train[repeat]] = free[self.samples.test[repeat]] = False
        rest = np.flatnonzero(free)
        seeds = [derived_seed(plan.seed, "shadow", str(repeat), str(model)) for model in range(count)]
        pairs = [two_disjoint_sets(len(rest), plan.records, seed) for seed in seeds]
        members, others = (rest[np.stack(rows)] for rows in zip(*pairs, strict=True))
        X, y = torch.from_numpy(data.X), torch.from_numpy(data.y)
        what = f"{count} shadow models, repeat {repeat + 1} of {plan.repeats}"
        parameters = train_stack(
            X,
            y,
            Assignment(torch.from_numpy(members), tuple(seeds), (plan.risk_factor,) * count),
            network_recipe(plan, self.samples),
            on_epoch=lambda done: self.progress(what, done / plan.epochs),
        )
        rows = np.concatenate([members, others], axis=1)
        z = stacked_logits(parameters, X, torch.from_numpy(rows)).double().numpy()
        member = np.tile(np.repeat([True, False], plan.records), count)
        return KnownAnswers(softmax(z.reshape(-1, data.classes)), data.y[rows.reshape(-1)], member)


def network_recipe(plan: Plan, samples: Samples) -> Recipe:
    """Table IV's training of the baseline and of its shadow models."""
    return Recipe(
        samples.topology,
        plan.reading,
        epochs=plan.epochs,
        batch_size=printed.BATCH_SIZE,
        learning_rate=printed.LEARNING_RATE,
        l2_regulariser=printed.L2_REGULARISER,
    )
