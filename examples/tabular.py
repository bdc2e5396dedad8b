"""Trains a classifier on a table, and evaluates it on other records with noise.

python examples/tabular.py

The table is patients.csv, which patients.py makes. A sixth of the rows is held out by their numbers, without looking at
them. What they say of the model is a release, too: the lineage pays for it, and the figures may be published.
"""

from pathlib import Path

import pandas

from dpserve import Levels, Lineage, Number, PrivateClassifier, Schema

rows = pandas.read_csv(Path(__file__).with_name("patients.csv"))
columns = {"age": Number(18, 95), "pressure": Number(60, 220), "smoker": Levels("no", "yes")}
schema = Schema(label="outcome", classes=["well", "ill"], id="id", columns=columns)
patients = Lineage("patients", epsilon=3, delta=1e-6)
model = PrivateClassifier(schema, epsilon=1, delta=1e-6, n=2000, lineage=patients)

held_out = rows["id"] % 6 == 0
print(model.cost())
model.fit(rows[~held_out])
evaluation = model.evaluate(rows[held_out], epsilon=0.5, delta=1e-6)
print(f"right: {evaluation.accuracy.lower:.2f} to {evaluation.accuracy.upper:.2f}")
print(model.predict_proba(rows.drop(columns="outcome").head(3)).round(3))
