import pytest

from audit.membership.mimicry import mimicry_of


def test_what_stands_on_an_unseen_network_is_not_mimicked():
    model = {"classes": ["a", "b"], "feature_map": {"kind": "encoder", "model_sha256": "0" * 64}}
    with pytest.raises(ValueError, match="does not show"):
        mimicry_of(model, 100)
