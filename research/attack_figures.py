"""`python -m research.attack_figures`: the figures of research/README.md about how attacks are evaluated.

`guessing` attacks targets that saw no candidate, and `single` accuses single records of many models. `pool` scores the
same answers with shadow models of ever more records than the target's, and `servers` attacks models of scikit-learn by
their answers alone. Everything follows from seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import typer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import Cost
from dpserve.audit.membership.candidates import Candidates, Labelled
from dpserve.audit.membership.claims import claim_of_releases
from dpserve.audit.membership.exposure import own_null
from dpserve.audit.membership.leakage import measure_leakage
from dpserve.audit.membership.scoring import (
    log_confidence,
    offline_ratio,
    online_ratio,
    pooled_ratio,
    relative_confidence,
    scaled_confidence,
    scores_of,
)
from dpserve.audit.membership.shadow_models import Draws, HeadRecipe, Pool, train_heads, train_shadow_models
from dpserve.audit.membership.verdict import curve, rate_at, verdict
from dpserve.mechanisms.elementary import softmax
from research.commands import DataDir, program, run
from research.data import benchmarks

app = program()

LAMBDA = 0.3
MODELS: Mapping[str, Callable[[], Any]] = {
    "forest": lambda: RandomForestClassifier(100, random_state=0),
    "forest, leaves of 5": lambda: RandomForestClassifier(100, min_samples_leaf=5, random_state=0),
    "logistic": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=300, C=10)),
    "network": lambda: make_pipeline(StandardScaler(), MLPClassifier((64,), max_iter=300, random_state=0)),
    "boosted trees": lambda: HistGradientBoostingClassifier(max_iter=60, random_state=0),
}


@app.command()
def guessing(
    candidates: Annotated[int, typer.Option(help="Of each kind.")] = 136,
    targets: int = 600,
    shadow_models: int = 10,
) -> None:
    """Print the mean area, and TPR at an FPR of 1 %, of attacks on heads that were trained on other digits."""
    X, y = _rows("digits", None)
    claim, recipe = claim_of_releases(Cost.parse("gaussian:1"), 1, 1e-6), HeadRecipe(10, LAMBDA)
    figures: dict[str, list[tuple[float, ...]]] = {}
    for seed in range(targets):
        generator = np.random.default_rng(seed)
        order = generator.permutation(len(y))
        asked, other = order[: 2 * candidates], order[2 * candidates : 3 * candidates]
        target = train_heads(X, y, other[None], recipe)[0]
        shadows = train_shadow_models(
            Pool(X[asked], y[asked]), recipe, Draws(shadow_models, candidates, seed), device="cpu"
        )
        member = np.isin(np.arange(2 * candidates), generator.permutation(2 * candidates)[:candidates])
        answers, shadow = softmax((X[asked] @ target).astype(np.float64)), softmax(shadows.logits)
        judged = verdict(scores_of(answers, y[asked], member, shadow, shadows.members, seed), claim, claim, 0.95, seed)
        for name, found in [*((each.attack, each) for each in judged.found), ("the one that counts", judged.best)]:
            figures.setdefault(name, []).append((found.auc, found.true_positive_rates[1] or 0.0))
    _print(figures)


@app.command()
def single(records: int = 200, targets: int = 600, shadow_models: int = 20) -> None:
    """Print how often single digits are accused by chance, where all together are in 1 %: of heads without them."""
    X, y = _rows("digits", None)
    some = np.random.default_rng(0).permutation(len(y))[: 2 * records]
    draws = Draws(targets + shadow_models, records, 0)
    models = train_shadow_models(Pool(X[some], y[some]), HeadRecipe(10, LAMBDA), draws, device="cpu")
    answers = softmax(models.logits)
    confidences = np.stack([scaled_confidence(each, y[some]) for each in answers])
    losses = np.stack([log_confidence(each, y[some]) for each in answers])
    shadow, seen, out = confidences[targets:], models.members[targets:], ~models.members[:targets]
    scores = {
        "LiRA, online": np.stack([online_ratio(each, shadow, seen) for each in confidences[:targets]]),
        "LiRA, offline": np.stack([offline_ratio(each, shadow, seen) for each in confidences[:targets]]),
        "RMIA": np.stack([relative_confidence(each, losses[targets:], seen) for each in losses[:targets]]),
    }
    accused = {name: each > np.quantile(each[out], 0.99) for name, each in scores.items()}
    beside = [(place + 1 + np.arange(shadow_models)) % targets for place in range(targets)]
    accused["own null"] = np.stack(
        [
            own_null(each, confidences[others], models.members[others]).rates <= 0.01
            for each, others in zip(confidences, beside, strict=False)
        ]
    )
    for name, each in accused.items():
        rates = (each & out).sum(axis=0) / out.sum(axis=0)
        typer.echo(
            f"{name}: on average {rates.mean():.4f}, never {np.mean(rates == 0):.2f} of the records, in more than 5 % "
            f"{np.mean(rates > 0.05):.3f} of them, at most {rates.max():.3f}"
        )


@app.command()
def pool(
    data_dir: DataDir = None, records: int = 600, targets: int = 6, shadow_models: int = 20, dataset: str = "location"
) -> None:
    """Print the same of heads without noise, by how many records the attacker's files have."""
    X, y = _rows(dataset, data_dir)
    recipe, figures = HeadRecipe(int(y.max()) + 1, LAMBDA), dict[str, list[tuple[float, ...]]]()
    ratios = {"online": online_ratio, "pooled": pooled_ratio, "offline": offline_ratio}
    for seed in range(targets):
        order = np.random.default_rng(seed).permutation(len(y))
        asked, rest = order[: 2 * records], order[2 * records :]
        target = train_heads(X, y, order[None, :records], recipe)[0]

        def confidences(logits: Floats, asked: Any = asked) -> Floats:
            return scaled_confidence(softmax(logits.astype(np.float64)), y[asked])

        own, draws = confidences(X[asked] @ target), Draws(shadow_models, records, seed)

        def note(name: str, scores: Floats) -> None:
            members, others = np.split(scores, 2)
            figures.setdefault(name, []).append((curve(members, others)[2], rate_at(0.01, members, others) or 0.0))

        for size in (2 * records, 4 * records, len(y)):
            some = order[:size]
            shadows = train_shadow_models(Pool(X[some], y[some]), recipe, draws, device="cpu")
            shadow = np.stack([confidences(each[: 2 * records]) for each in shadows.logits])
            for name, ratio in ratios.items():
                note(f"LiRA, {name}, {size} records", ratio(own, shadow, shadows.members[:, : 2 * records]))
        heads = train_heads(X, y, rest[draws.rows(len(rest))], recipe)
        shadow = np.stack([confidences(X[asked] @ head) for head in heads])
        note("LiRA, offline, none of theirs", offline_ratio(own, shadow, np.zeros(shadow.shape, np.bool_)))
    _print(figures)


@app.command()
def servers(
    dataset: str,
    data_dir: DataDir = None,
    model: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(MODELS)}; repeatable.")] = None,
    records: int = 400,
    draws: int = 3,
) -> None:
    """Print the same of attacks by answers alone, for each of scikit-learn's models."""
    data = benchmarks.read(dataset, data_dir)
    everyone = Labelled(data.X.astype(np.float64), data.y)
    for name in model or MODELS:
        figures: dict[str, list[tuple[float, ...]]] = {}
        for seed in range(draws):
            order = np.random.default_rng(seed).permutation(len(everyone))
            members, others = everyone[order[:records]], everyone[order[records : 2 * records]]
            target = MODELS[name]().fit(members.X, members.y)
            for found in measure_leakage(target.predict_proba, Candidates(members, others), seed=seed).attacks:
                figures.setdefault(found.attack, []).append((found.auc, found.true_positive_rates[1] or 0.0))
        _print({f"{dataset}, {name}: {attack}": each for attack, each in figures.items()})


def _rows(dataset: str, data_dir: Any) -> tuple[Any, Any]:
    data = benchmarks.read(dataset, data_dir)
    return data.X / np.maximum(np.linalg.norm(data.X, axis=1, keepdims=True), 1e-9), data.y


def _print(figures: Mapping[str, Sequence[tuple[float, ...]]]) -> None:
    for name, rows in figures.items():
        (area, rate), errors = np.mean(rows, axis=0), np.std(rows, axis=0) / np.sqrt(len(rows))
        typer.echo(f"{name}: area {area:.4f} +- {errors[0]:.4f}, TPR at 1 % {rate:.4f} +- {errors[1]:.4f}")


if __name__ == "__main__":
    run(app)
