"""The models that an attacker can train in another's likeness: each kind says so of its own, by what everyone sees.

A pay-once kind trains others by its own code from the public certificate (`Kind.trainer_alike`): such models have the
target's noise and clipping. `Likeness` describes simpler models, for kinds without that.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpserve.training.features.maps import FeatureMap
from dpserve.training.fitting.sensitivity import Convexity
from dpserve.training.pay_once.cuts import CUTS
from dpserve.training.pay_once.releases import TRAINING, Release, composed


@dataclass(frozen=True)
class Likeness:
    """A model like another, as its certificate's public part describes it.

    hidden: the widths of a network's hidden layers; none for a linear head. activation, objective, alpha,
    l2_regulariser, epochs: of a network, the last two None where they are not known. strong_convexity: Lambda of a
    head, None where it is not known. convexity: of a head's convexified objective. sensitivity: of its logits, of a
    head for features of length 1; None where noise on answers does not follow from it.
    """

    hidden: tuple[int, ...] = ()
    activation: Any = "tanh"
    objective: Any = "cross-entropy"
    alpha: float = 1.0
    l2_regulariser: float | None = None
    epochs: int | None = None
    strong_convexity: float | None = None
    convexity: Convexity | None = None
    sensitivity: float | None = None


_MORE = 1 + 1e-9
"""A price so much larger pays for the same noise, whatever was rounded."""


def price_of(public: Mapping[str, Any]) -> int | None:
    """Return about what a pay-once model cost without its features, in picorho; None where that does not say it.

    That is of one chosen among several. public: of its certificate.
    """
    if public.get("chosen_among") is not None:
        return None
    own = composed(
        release for release in releases_shown(public) if release.part == TRAINING and release.name != CUTS.name
    )
    return math.ceil(own.picorho * _MORE)


def releases_shown(public: Mapping[str, Any]) -> tuple[Release, ...]:
    """Return the releases of a pay-once model. public: of its certificate."""
    return tuple(Release.model_validate(release) for release in public["releases"])


def bought_before(public: Mapping[str, Any], feature_map: FeatureMap) -> tuple[Release, ...]:
    """Return the releases that a feature map was made of; none for one that is public to whoever trains alike."""
    return tuple(release for release in releases_shown(public) if release.name == CUTS.name and feature_map.losses)


def head_likeness(public: Mapping[str, Any]) -> Likeness:
    """Return the likeness of a linear model that minimises a regularised objective. public: of its certificate."""
    lam, convexified = public.get("strong_convexity"), public.get("convexified")
    return Likeness(
        strong_convexity=None if lam is None else float(lam),
        convexity=None
        if convexified is None
        else Convexity(float(convexified["alpha"]), int(convexified["least_records"])),
        sensitivity=public.get("logit_sensitivity_per_norm"),
    )


def network_likeness(public: Mapping[str, Any]) -> Likeness:
    """Return the likeness of a network that trains for so many passes. public: of its certificate."""
    beside = public.get("beside")
    passes = round(float(public.get("steps", 0)) * float((beside or public).get("sampling_rate", 0)))
    return Likeness(hidden=() if beside is None else (beside["hidden"],), epochs=max(passes, 1))
