"""A large table scored by an exported model on Ray Data: rows per second with one process and with two.

The table is Parquet, written here; the model is class sums on Fourier features, exported as ONNX. What is timed is
a whole job on a Ray that runs: starting the processes, reading, scoring and writing.

Run: python -m benchmarks.ray_scoring [--rows N] [--out FILE]
"""

import argparse
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving import results
from benchmarks.serving.contenders import train_pay_once
from benchmarks.serving.network import CLASSES, FEATURES
from dpserve.training.export.files import exported
from dpserve.training.kinds.loading import load_model
from dpserve.training.pay_once.model import ReleasedModel

_FILES = 16
_COLUMN = "x"
PROCESSES = (1, 2)


class Score:
    """Scores batches by an ONNX file, on one thread."""

    def __init__(self, path: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        label, probabilities = self._session.run(None, {"x": np.stack(batch[_COLUMN])})
        return {"row": batch["row"], "label": label.astype(str), "probabilities": probabilities}


def write_table(folder: Path, rows: int) -> None:
    """Write a table of random rows as Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    generator = np.random.default_rng(0)
    numbers = np.array_split(np.arange(rows), _FILES)
    for index, number in enumerate(numbers):
        values = pa.array(generator.random(len(number) * FEATURES))
        lists = pa.FixedSizeListArray.from_arrays(values, FEATURES)
        pq.write_table(pa.table({"row": number, _COLUMN: lists}), folder / f"{index}.parquet")


def score_table(table: Path, model: Path, out: Path, processes: int) -> float:
    """Score the table with so many processes into a new folder; return the seconds that it took."""
    import ray

    began = time.perf_counter()
    data = ray.data.read_parquet(str(table), columns=["row", _COLUMN], override_num_blocks=_FILES)
    pool = ray.data.ActorPoolStrategy(size=processes)
    data = data.map_batches(Score, fn_constructor_args=[str(model)], batch_size=1024, compute=pool, num_cpus=1)
    data.write_parquet(str(out))
    return time.perf_counter() - began


def check(table: Path, out: Path, model: ReleasedModel) -> None:
    """Raise RuntimeError unless each row has its own answer."""
    import pyarrow.parquet as pq

    rows = pq.read_table(table / "0.parquet")
    found = pq.read_table(out)
    count = sum(pq.read_metadata(file).num_rows for file in table.glob("*.parquet"))
    if sorted(found["row"].to_pylist()) != list(range(count)):
        raise RuntimeError(f"{count} rows were asked, and {len(found)} answered, or not each once")
    answers = dict(zip(found["row"].to_pylist(), found["probabilities"].to_pylist(), strict=True))
    asked = np.array(rows[_COLUMN].to_pylist()[:100])
    wrong = np.abs(np.array([answers[row] for row in rows["row"].to_pylist()[:100]]) - model.values(asked)).max()
    if wrong > 1e-6:
        raise RuntimeError(f"answers are off by up to {wrong:.3g}")


def main() -> None:
    """Measure, print, and write the results if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--out", type=Path, help="a document of results to put this part into")
    options = parser.parse_args()
    part: dict[str, Any] = {"rows": options.rows, "features": FEATURES, "classes": CLASSES, "rows_per_second": {}}
    import ray

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = train_pay_once(folder / "model", "class-sums", "fourier")
        model = load_model(bundle)
        assert isinstance(model, ReleasedModel)
        (folder / "model.onnx").write_bytes(exported(model, "onnx").content)
        write_table(folder / "table", options.rows)
        ray.init(num_cpus=max(PROCESSES) + 1, logging_level=logging.ERROR, include_dashboard=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        try:
            for processes in PROCESSES:
                out = folder / f"scored-{processes}"
                seconds = score_table(folder / "table", folder / "model.onnx", out, processes)
                check(folder / "table", out, model)
                part["rows_per_second"][str(processes)] = options.rows / seconds
                print(f"{processes} process{'es' * (processes > 1)}: {options.rows / seconds:,.0f} rows/s")
        finally:
            ray.shutdown()
    if options.out is not None:
        results.merge(options.out, {"ray data": results.stamp(part)})


if __name__ == "__main__":
    main()
