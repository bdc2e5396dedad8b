"""Trains again each month on records that come: each month is a block with a budget of its own.

python examples/blocks.py

A model charges the blocks that it was trained on, and no other. So March's budget is whole when its records arrive,
although the model of January and February was paid for.
"""

import random

import pandas

from dpserve import Blocks, Levels, Lineage, Number, PrivateClassifier, Schema

MONTHS = ["2026-01", "2026-02", "2026-03"]


def sales(month: str) -> pandas.DataFrame:
    """Return a month's made sales: number, day, price, shop, returned."""
    draw, made = random.Random(month), []  # noqa: S311
    for number in range(1000):
        price, shop = draw.uniform(1, 200), draw.choice(["web", "street"])
        returned = draw.random() < 0.1 + 0.4 * (shop == "web") + price / 500
        day = f"{month}-{draw.randint(1, 28):02}"
        made.append((f"{month}-{number}", day, price, shop, "yes" if returned else "no"))
    return pandas.DataFrame(made, columns=["number", "day", "price", "shop", "returned"])


def model_of(months: list[str]) -> PrivateClassifier:
    """Return a model that is trained on these months."""
    blocks = Blocks(block="day", block_by="month", blocks=",".join(months))
    columns = {"price": Number(0, 200), "shop": Levels("web", "street")}
    schema = Schema(label="returned", classes=["no", "yes"], columns=columns, id="number")
    lineage = Lineage("sales", epsilon=2, delta=1e-6, blocks=blocks)
    # The second model is of records that the first one had, and costs epsilon 1 again: "again" says that it is meant.
    model = PrivateClassifier(schema, epsilon=1, delta=1e-6, n=1000 * len(months), lineage=lineage, again=True)
    return model.fit(pandas.concat(map(sales, months)))


model_of(MONTHS[:2])
model = model_of(MONTHS)
for month, left in model.cost().left.items():
    print(f"{month}: {left} is left")
