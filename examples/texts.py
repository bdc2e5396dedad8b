"""Trains a classifier on a column of free text beside a number: made messages to a help desk.

python examples/texts.py

Words are counted in hashed buckets, without a vocabulary: one that is read off the records would tell of them.
"""

import random

import pandas

from dpserve import Lineage, Number, PrivateClassifier, Schema, Text

PARTS = {
    "billing": ["the invoice is wrong", "I was charged twice", "please refund the payment"],
    "outage": ["nothing loads today", "the page shows an error", "it has been down for an hour"],
}
OPENINGS = ["hello,", "good morning,", "hi, a question:"]


def messages(count: int) -> pandas.DataFrame:
    """Return made messages: text, hour, topic."""
    draw, topics = random.Random(2), list(PARTS)  # noqa: S311
    made = [(draw.choice(OPENINGS), draw.choice(topics), draw.randint(0, 23)) for _ in range(count)]
    texts = [f"{opening} {' and '.join(draw.sample(PARTS[topic], 2))}" for opening, topic, _ in made]
    return pandas.DataFrame(
        {"message": texts, "hour": [hour for *_, hour in made], "topic": [topic for _, topic, _ in made]}
    )


rows = messages(3000)
rows["number"] = range(len(rows))
columns = {"message": Text(buckets=256), "hour": Number(0, 24)}
schema = Schema(label="topic", classes=list(PARTS), columns=columns, id="number")
model = PrivateClassifier(schema, epsilon=1, delta=1e-6, n=3000, lineage=Lineage("help-desk", epsilon=1, delta=1e-6))
model.fit(rows)
asked = {
    "message": ["hello, I was charged twice and please refund the payment", "nothing loads today"],
    "hour": [9, 17],
}
print(model.predict(pandas.DataFrame(asked)))
