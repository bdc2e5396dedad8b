"""The rivals, run by the interpreter that has them: `python trainers.py TASK.npz ANSWERS.npz`.

It imports nothing of this project, so that the rivals' requirements need not be ours. A task holds the records and the
rows asked about, numbers scaled to 0 to 1 by their declared bounds and levels as codes, and a JSON list of what to
train: all rivals are told of a table what dpserve is told of it, its columns' bounds, levels and classes.
"""

import json
import sys
import time
import warnings
from typing import Any

import numpy as np

STEPS, SAMPLING_RATE, MOMENTUM, CLIP_NORM = 200, 0.1, 0.9, 1.0
LEAST_BATCH, MOST_BATCH = 1000, 20_000


def dp_ebm(task: dict[str, Any], arrays: Any) -> Any:
    """InterpretML's DP-EBM at (epsilon, delta), with its own defaults, told every bound and its columns' types."""
    import pandas as pd  # type: ignore[import-untyped]
    from interpret.privacy import DPExplainableBoostingClassifier  # type: ignore[import-not-found]

    def frame(part: str) -> pd.DataFrame:
        numbers, codes = arrays[f"numbers_{part}"], arrays[f"codes_{part}"]
        levels = {f"level{place}": codes[:, place].astype(str) for place in range(codes.shape[1])}
        return pd.DataFrame({f"number{place}": numbers[:, place] for place in range(numbers.shape[1])} | levels)

    records = frame("records")
    types = ["continuous" if name.startswith("number") else "nominal" for name in records.columns]
    bounds = {place: (0.0, 1.0) for place, kind in enumerate(types) if kind == "continuous"}
    model = DPExplainableBoostingClassifier(
        feature_types=types,
        privacy_bounds=bounds,
        epsilon=task["epsilon"],
        delta=task["delta"],
        random_state=task["seed"],
        n_jobs=1,
    )
    model.fit(records, arrays["y"])
    return model.predict_proba(frame("asked"))


def diffprivlib(task: dict[str, Any], arrays: Any) -> Any:
    """diffprivlib's logistic regression at epsilon, which has no delta; rows are at most sqrt(columns) long."""
    from diffprivlib.models import LogisticRegression  # type: ignore[import-not-found]

    norm, seed = float(np.sqrt(task["columns"])), task["seed"]
    model = LogisticRegression(
        epsilon=task["epsilon"], data_norm=norm, C=task["choice"], random_state=seed, max_iter=1000
    )
    model.fit(arrays["coded_records"], arrays["y"])
    return model.predict_proba(arrays["coded_asked"])


def opacus(task: dict[str, Any], arrays: Any) -> Any:
    """A linear head by Opacus at (epsilon, delta): as many steps, batches as large and clipping as dpserve has."""
    import torch
    from opacus import PrivacyEngine

    torch.manual_seed(task["seed"])
    torch.set_num_threads(1)
    X = torch.tensor(2 * arrays["coded_records"] - 1, dtype=torch.float32)
    records = torch.utils.data.TensorDataset(X, torch.tensor(arrays["y"]))
    rate = min(1.0, max(min(SAMPLING_RATE, MOST_BATCH / len(X)), LEAST_BATCH / len(X)))
    loader = torch.utils.data.DataLoader(records, batch_size=max(1, round(rate * len(X))))
    network = torch.nn.Linear(X.shape[1], task["classes"])
    model, optimiser, loader = PrivacyEngine().make_private_with_epsilon(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=task["choice"], momentum=MOMENTUM),
        data_loader=loader,
        target_epsilon=task["epsilon"],
        target_delta=task["delta"],
        epochs=max(1, round(STEPS * rate)),
        max_grad_norm=CLIP_NORM,
    )
    done = 0
    while done < STEPS:
        for rows, labels in loader:
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(rows), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            done += 1
            if done == STEPS:
                break
    with torch.no_grad():
        asked = torch.tensor(2 * arrays["coded_asked"] - 1, dtype=torch.float32)
        return torch.softmax(network(asked), dim=1).numpy().astype(np.float64)


RIVALS = {"dp-ebm": dp_ebm, "diffprivlib": diffprivlib, "opacus": opacus}


def main(task_file: str, answers_file: str) -> None:
    """Train what each task says, and write the probabilities of the rows asked and the processor's seconds."""
    warnings.simplefilter("ignore")
    found = {}
    with np.load(task_file, allow_pickle=False) as file:
        arrays = dict(file)
    for place, task in enumerate(json.loads(str(arrays["tasks"]))):
        started = time.process_time()
        found[f"probabilities{place}"] = RIVALS[task["rival"]](task, arrays)
        found[f"seconds{place}"] = time.process_time() - started
    np.savez(answers_file, **found)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
