"""Protects people who have several records each: made visits, up to twelve of one person.

python examples/units.py

With a unit, neighbouring sets differ in all records of one person, and `n` counts people. A model is as private for
somebody with twelve visits as for somebody with one.
"""

import random

import pandas

from dpserve import Levels, Lineage, Number, PrivateClassifier, Schema


def visits(people: int) -> pandas.DataFrame:
    """Return made visits: person, age, ward, stays."""
    draw, made = random.Random(3), []  # noqa: S311
    for person in range(people):
        age = draw.randint(18, 95)
        for _ in range(draw.randint(1, 12)):
            ward = draw.choice(["day", "surgery", "heart"])
            chance = 0.1 + 0.4 * (ward != "day") + 0.4 * (age > 60)
            made.append((person, age, ward, "yes" if draw.random() < chance else "no"))
    return pandas.DataFrame(made, columns=["person", "age", "ward", "stays"])


columns = {"age": Number(18, 95), "ward": Levels("day", "surgery", "heart")}
schema = Schema(label="stays", classes=["no", "yes"], columns=columns, unit="person")
model = PrivateClassifier(schema, epsilon=1, delta=1e-6, n=2000, lineage=Lineage("visits", epsilon=1, delta=1e-6))
model.fit(visits(2000))
print(f"protected: all records with one {model.certificate_.unit}")
print(model.predict(pandas.DataFrame({"age": [25, 80], "ward": ["day", "heart"]})))
