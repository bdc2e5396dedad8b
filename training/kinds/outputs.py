"""The answers of a kind of model, as fields with names: what is above a kind asks it for these.

An answer to rows is one array, (n, numbers): the fields stand beside each other in it. Probabilities of classes are one
field among others that may be: a kind may answer with numbers, counts, or probabilities of several labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats


@dataclass(frozen=True)
class Output:
    """A field of an answer. labels: the name of each of its numbers; None for a single number.

    counts: whether its numbers are whole. sentence: what it is, for a person.
    """

    name: str
    sentence: str
    labels: tuple[str, ...] | None = None
    counts: bool = False

    @property
    def size(self) -> int:
        """Number of its values for each row."""
        return 1 if self.labels is None else len(self.labels)

    def described(self) -> dict[str, Any]:
        """Return it as JSON."""
        fields = {"name": self.name, "sentence": self.sentence, "type": "count" if self.counts else "number"}
        return fields | ({} if self.labels is None else {"labels": list(self.labels)})


@dataclass(frozen=True)
class Outputs:
    """The fields of an answer, in their order. classes: those whose probabilities are the answer; None for others."""

    fields: tuple[Output, ...]
    classes: tuple[str, ...] | None = None

    @classmethod
    def of_classes(cls, classes: Sequence[str]) -> Self:
        """Return the outputs of a classifier: a probability for each class."""
        names = tuple(classes)
        return cls((Output("probabilities", "the probability of each class", names),), names)

    def split(self, answers: Floats) -> dict[str, NDArray[Any]]:
        """Return the fields of answers (n, numbers) by name: (n,), or (n, labels); whole numbers as int64."""
        found, start = {}, 0
        for field in self.fields:
            part = answers[:, start] if field.labels is None else answers[:, start : start + field.size]
            found[field.name] = part.astype(np.int64) if field.counts else part
            start += field.size
        return found

    def described(self) -> list[dict[str, Any]]:
        """Return the fields as JSON, as `GET /models/NAME` has them."""
        return [field.described() for field in self.fields]

    def objects(self, answers: Floats) -> list[dict[str, Any]]:
        """Return each row of answers (n, numbers) as an object by the fields' names, for JSON."""
        columns = {name: part.tolist() for name, part in self.split(answers).items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
