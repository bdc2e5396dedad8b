"""Priv_Leak (Eq. 32): shadow models on the records that a repeat does not use, and the attack that learns from them.

Section 3.3: k shadow models of the target's kind, each trained on n records and asked about them and about n others;
the attack learns from their answers, without noise, and decides about every model's. One is prepared for each repeat.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats, Labels, Mask
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.seeded import derived_seed
from dpserve.training.devices import Device
from dpserve.training.kinds.published.bounds import PublishedRecipe, Topology
from dpserve.training.kinds.published.train import Assignment, Parameters, stacked_logits, train_stack
from research.data.sampling import two_disjoint_sets
from research.lu2022 import measures, printed
from research.lu2022.results import Plan
from research.lu2022.samples import Samples

TRAINING_SET = 24_000
"""Answers that an attack learns from; research/lu2022/README.md says what more or fewer do."""


EPOCHS = 100


@dataclass(frozen=True, eq=False)
class KnownAnswers:
    """Answers of shadow models, with what is known of each. answers: (n, C); y: (n,); member: (n,), some, not all."""

    answers: Floats
    y: Labels
    member: Mask


@dataclass(frozen=True, eq=False)
class AttackNetwork:
    """A trained attack that sees answers alone, trained as the shadow models are (Table IV)."""

    parameters: Parameters

    def scores(self, answers: Floats) -> Floats:
        """Return the log-odds of membership (n,) of answers (n, C)."""
        inputs = torch.from_numpy(answers.astype(np.float32)).to(self.parameters[0].weight.device)
        z = stacked_logits(self.parameters, inputs, torch.arange(len(answers))[None])[0]
        return np.asarray((z[:, 1] - z[:, 0]).double().cpu().numpy())

    def decide(self, answers: Floats, y: Labels) -> NDArray[np.bool_]:
        """Return whether each record was trained on, where membership is the likelier: (n,). y: not looked at."""
        del y
        decided: NDArray[np.bool_] = self.scores(answers) > 0
        return decided


@dataclass(eq=False)
class Attacks:
    """The attacks of all repeats, prepared when the first one is needed."""

    plan: Plan
    samples: Samples
    progress: Callable[[str, float], None] = lambda _, __: None
    _prepared: Sequence[AttackNetwork] = field(default=(), init=False)

    @property
    def name(self) -> str:
        """A description of what a stored leakage depends on."""
        return f"one network that sees answers alone, {self._shadow_models} shadow models, on {self.plan.device}"

    def leakage(self, repeat: int, members: Floats, non_members: Floats) -> float:
        """Eq. 32 of answers (n, C) about the repeat's training set and test set."""
        y, samples = self.samples.data.y, self.samples
        return measures.attack_leakage(
            self._attack(repeat), (members, y[samples.train[repeat]]), (non_members, y[samples.test[repeat]])
        )

    @property
    def _shadow_models(self) -> int:
        return printed.SHADOW_MODELS[self.plan.dataset]

    def _attack(self, repeat: int) -> AttackNetwork:
        if not self._prepared:
            known = [self._known_answers(one) for one in range(self.plan.repeats)]
            seeds = [derived_seed(self.plan.seed, "attack", str(one)) for one in range(self.plan.repeats)]
            self._prepared = train_blind_networks(
                known,
                seeds,
                device=self.plan.device,
                on_share=lambda share: self.progress("attack networks", share),
            )
        return self._prepared[repeat]

    def _known_answers(self, repeat: int) -> KnownAnswers:
        plan, data, count = self.plan, self.samples.data, self._shadow_models
        free = np.ones(len(data.y), dtype=np.bool_)
        free[self.samples.train[repeat]] = free[self.samples.test[repeat]] = False
        rest = np.flatnonzero(free)
        seeds = [derived_seed(plan.seed, "shadow", str(repeat), str(model)) for model in range(count)]
        pairs = [two_disjoint_sets(len(rest), plan.records, seed) for seed in seeds]
        members, others = (rest[np.stack(rows)] for rows in zip(*pairs, strict=True))
        X, y = torch.from_numpy(data.X).to(plan.device), torch.from_numpy(data.y).to(plan.device)
        what = f"{count} shadow models, repeat {repeat + 1} of {plan.repeats}"
        parameters = train_stack(
            X,
            y,
            Assignment(torch.from_numpy(members), tuple(seeds), (plan.risk_factor,) * count),
            baseline_recipe(plan, self.samples),
            on_epoch=lambda done: self.progress(what, done / plan.epochs),
        )
        rows = np.concatenate([members, others], axis=1)
        z = stacked_logits(parameters, X, torch.from_numpy(rows)).double().cpu().numpy()
        member = np.tile(np.repeat([True, False], plan.records), count)
        return KnownAnswers(softmax(z.reshape(-1, data.classes)), data.y[rows.reshape(-1)], member)


def baseline_recipe(plan: Plan, samples: Samples) -> PublishedRecipe:
    """Table IV's training of the baseline and of its shadow models."""
    return PublishedRecipe(
        samples.topology,
        plan.reading,
        epochs=plan.epochs,
        batch_size=printed.BATCH_SIZE,
        learning_rate=printed.LEARNING_RATE,
        l2_regulariser=printed.L2_REGULARISER,
    )


def train_blind_networks(
    known: Sequence[KnownAnswers],
    seeds: Sequence[int],
    *,
    most: int = TRAINING_SET,
    device: Device = "cpu",
    on_share: Callable[[float], None] = lambda _: None,
) -> tuple[AttackNetwork, ...]:
    """Train one attack that sees answers alone for each set of known answers, all of the same size, as one stack.

    most: answers that each learns from at most, drawn at random.
    """
    classes, size = known[0].answers.shape[1], len(known[0].y)
    if any(one.answers.shape != (size, classes) for one in known):
        raise ValueError("attacks that are trained together learn from equally many answers of as many classes")
    picked = [np.random.default_rng(seed).permutation(size)[:most] for seed in seeds]
    pairs = list(zip(known, picked, strict=True))
    X = torch.from_numpy(np.concatenate([one.answers[rows] for one, rows in pairs]).astype(np.float32)).to(device)
    y = torch.from_numpy(np.concatenate([one.member[rows] for one, rows in pairs]).astype(np.int64)).to(device)
    assignment = Assignment(torch.arange(len(y)).view(len(known), -1), tuple(seeds), (1.0,) * len(known))
    recipe = PublishedRecipe(
        Topology(classes, (64,), 2),
        "cross-entropy",
        epochs=EPOCHS,
        batch_size=100,
        learning_rate=0.01,
        l2_regulariser=1e-6,
    )
    trained = train_stack(X, y, assignment, recipe, on_epoch=lambda done: on_share(done / EPOCHS))
    return tuple(
        AttackNetwork(tuple(type(layer)(layer.weight[[place]], layer.bias[[place]]) for layer in trained))
        for place in range(len(known))
    )
