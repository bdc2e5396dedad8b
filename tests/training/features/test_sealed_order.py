"""The order of a map's fields: it is that of a certificate's text, which bundles hold and are compared with."""

import pytest

from dpserve.training.features.maps import FEATURE_MAPS, Encoder, FeatureMap

COMMON = ["lower", "upper", "clip_norm", "bias", "columns", "kind"]
OWN = {
    "identity": [],
    "bins": ["crosses", "cross_buckets", "cross_cells"],
    "quantiles": ["released"],
    "hog": ["image_shape", "centred"],
    "hog-fourier": ["image_shape", "random_features", "bandwidth", "seed"],
    "fourier": ["random_features", "bandwidth", "seed"],
    "encoder": ["width", "model_sha256", "input_range"],
}
"""A new field comes last: bundles that lack it are read by its default."""


@pytest.mark.parametrize(("name", "kind"), [*FEATURE_MAPS.items(), ("encoder", Encoder)])
def test_a_map_s_fields_are_in_the_order_in_which_bundles_have_them(name: str, kind: type[FeatureMap]) -> None:
    assert list(kind.model_fields) == COMMON + OWN[name]
