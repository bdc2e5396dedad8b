import pytest

from dpserve.training.errors import BundleError


def test_a_fresh_certificate_verifies(head):
    assert head.certificate.verify() is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("strong_convexity", 2.0),
        ("tolerance", 1e-2),
        ("weight_sensitivity", 0.1),
        ("logit_sensitivity_per_norm", 0.1),
        ("feature_norm_bound", 0.5),
        ("feature_step", 2.0**-30),
        ("weight_step", 2.0**-50),
        ("assumptions", ("nothing to worry about",)),
    ],
)
def test_a_changed_number_is_found(head, field, value):
    changed = head.certificate.model_copy(update={field: value})
    with pytest.raises(BundleError, match="the certificate does not hold"):
        changed.verify()


def test_what_is_private_is_not_public(head):
    public = head.certificate.public()
    assert not {"weights_sha256", "lineage", "created"} & set(public)
    assert public["weight_sensitivity"] == head.certificate.weight_sensitivity
