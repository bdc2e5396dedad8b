"""Makes patients.csv: 2,000 made people. Age, blood pressure and smoking decide, with chance, who is ill.

python examples/patients.py
"""

import csv
import math
import random
from pathlib import Path

COUNT, SEED = 2000, 1


def patient(draw: random.Random, number: int) -> list[object]:
    """Return a row: id, age, pressure, smoker, outcome."""
    age = round(draw.uniform(18, 95))
    pressure = round(min(max(draw.gauss(115 + age / 4, 15), 60), 220))
    smokes = draw.random() < 0.25
    log_odds = (age - 62) / 8 + (pressure - 131) / 12 + 1.5 * smokes
    outcome = "ill" if draw.random() < 1 / (1 + math.exp(-log_odds)) else "well"
    return [number, age, pressure, "yes" if smokes else "no", outcome]


def main() -> None:
    """Write the file beside this one."""
    draw = random.Random(SEED)  # noqa: S311 - nobody is protected by it
    with Path(__file__).with_suffix(".csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["id", "age", "pressure", "smoker", "outcome"])
        rows.writerows(patient(draw, number) for number in range(1, COUNT + 1))


if __name__ == "__main__":
    main()
