"""No message of a validator reaches a person."""

from pathlib import Path
from typing import get_args

import pytest
from pydantic_core.core_schema import ErrorType

import dpserve
from dpserve.accounting.faults_in_words import in_words

PARTS = ("accounting", "audit", "dpserve", "service", "training")
CONTEXT = dict.fromkeys(("ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length"), 7)
CONTEXT |= dict.fromkeys(("expected", "expected_tags", "pattern", "discriminator"), "'a' or 'b'")
"""What errors of pydantic have beside their type, as far as the words take it."""


@pytest.mark.parametrize("kind", get_args(ErrorType))
def test_every_error_of_pydantic_has_words_of_our_own(kind: str) -> None:
    said = in_words({"type": kind, "msg": "Value error, our own", "ctx": CONTEXT | {"error": ValueError("our own")}})
    assert said
    assert "Value error" not in said


def test_nobody_shows_its_own_message() -> None:
    """`_fault` of options shows what a field's own check says, which raised ValueError."""
    folder = Path(dpserve.__file__).parents[1]
    texts = {path.resolve(): path.read_text() for part in PARTS for path in (folder / part).rglob("*.py")}
    shows = [path for path, text in texts.items() if '["msg"]' in text or "['msg']" in text]
    assert sorted(path.name for path in shows) == ["faults_in_words.py", "options.py"]
