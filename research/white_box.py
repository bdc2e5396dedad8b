"""Records of the papers' data sets for the white-box audits."""

from pathlib import Path

from audit.white_box import experiments
from audit.white_box.experiments import Material, Setting
from research.data import benchmarks


def prepared(setting: Setting, data_dir: Path | None, seed: int) -> Material:
    """Return the records of a setting, drawn by `seed`. Raises ValueError for too few, and DataError for files."""
    data = benchmarks.read(setting.dataset, data_dir)
    return experiments.prepare(setting, data.X, data.y, data.classes, data.source, seed)
