"""The one list of public feature maps; `dpserve.training.features.feature_map` defines what they have in common."""

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from pydantic import Field, TypeAdapter

from dpserve.training.features.bins import Bins
from dpserve.training.features.cut_numbers import Quantiles
from dpserve.training.features.encoded import Encoder
from dpserve.training.features.feature_map import FeatureMap
from dpserve.training.features.fourier import Fourier, Identity
from dpserve.training.features.images import Hog, HogFourier

__all__ = ["Bins", "Encoder", "FeatureMap", "Fourier", "Hog", "HogFourier", "Identity", "Quantiles"]

AnyFeatureMap = Annotated[Identity | Bins | Quantiles | Hog | HogFourier | Fourier, Field(discriminator="kind")]
"""Those that need no file: the one list of them. A map's own fields are its options, by the same names."""

HeadFeatureMap = Annotated[AnyFeatureMap | Encoder, Field(discriminator="kind")]
"""Those that a head, or a pay-once model, may stand on."""

FEATURE_MAPS: Mapping[str, type[FeatureMap]] = {
    feature_map.model_fields["kind"].default: feature_map for feature_map in get_args(get_args(AnyFeatureMap)[0])
}
"""Those that need no file, by name."""

_SHOWN: TypeAdapter[AnyFeatureMap] = TypeAdapter(AnyFeatureMap)


def map_as_shown(shown: Mapping[str, Any]) -> FeatureMap:
    """Return the map that strangers can make of what they are shown of one, which is not the cuts: even ones.

    shown: of a certificate's public part. Raises ValidationError for what is no map that needs no file.
    """
    if "cuts" not in (shown.get("released") or {"cuts": None}):
        shown = {name: value for name, value in shown.items() if name != "released"}
    return _SHOWN.validate_python(shown)
