"""The error for a package that is not installed is one sentence."""

import pytest

from dpserve.training.errors import MissingExtra, extra


def test_a_missing_module_names_its_extra() -> None:
    said = r"the plot needs no_such_module: pip install 'dpserve\[plots\]'"
    with pytest.raises(MissingExtra, match=said), extra("plots", "the plot"):
        import no_such_module  # noqa: F401


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), extra("plots", "the plot"):
        raise KeyError
    with extra("plots", "the plot"):
        pass
