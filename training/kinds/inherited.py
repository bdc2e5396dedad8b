"""A pay-once model that another one is computed from: what of it is taken, and whether it fits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from accounting.arrays import Floats
from accounting.messages import OptionName
from training.bundles.certificate import Declared
from training.errors import BundleError, NotExportable, WrongOption
from training.features.maps import FeatureMap
from training.kinds.loading import load_model
from training.kinds.registry import kind_of
from training.pay_once.classifier import Classifier
from training.pay_once.earlier import EarlierModel

Option = Literal["start", "add"]


@dataclass(frozen=True, eq=False)
class Inherited:
    """A model as another one takes it. option: by which; model: what was loaded, of whichever pay-once kind.

    earlier: it, and what it was computed from itself, as the new certificate names them.
    """

    option: Option
    model: Any
    earlier: tuple[EarlierModel, ...]

    @classmethod
    def read(cls, option: Option, folder: str) -> "Inherited":
        """Read and verify a bundle. Raises WrongOption for what is none, and for a model that is not private itself."""
        try:
            model = load_model(Path(folder))
        except BundleError as error:
            raise WrongOption(option, f"names no bundle that can be taken: {error}", value=folder) from error
        if (kind := kind_of(model)).answers != "once":
            raise WrongOption(
                option,
                f"is of the kind {kind.name!r}, each of whose answers is paid for: its exact weights have no noise of "
                "their own, so that whatever is computed from them tells of its records what nobody paid for",
                value=folder,
                remedy="take a model that is private itself: train one with " + OptionName("release"),
            )
        if len(model.certificate.tiers) > 1:
            raise WrongOption(option, "has several tiers, and is held in parts", value=folder, remedy="take one of one")
        return cls.released(option, model)

    @classmethod
    def released(cls, option: Option, model: Any, *, apart: bool = False) -> "Inherited":
        """Return a pay-once model as another one takes it. apart: whether its records are known to be others."""
        certificate = model.certificate
        this = EarlierModel(
            role="weights" if option == "start" else "sums",
            model_id=certificate.model_id,
            release=certificate.release,
            weights_sha256=certificate.weights_sha256,
            drawn=certificate.drawn.hex(),
            lineage=certificate.lineage,
            cost=str(certificate.tiers[0].cost),
            blocks=certificate.blocks,
            block_budget=certificate.block_budget,
            apart=apart,
        )
        before = [each.model_copy(update={"role": "before"}) for each in certificate.earlier]
        return cls(option, model, (this, *before))

    @property
    def lineages(self) -> tuple[str, ...]:
        """The lineages whose records it holds something of, its own first, each once."""
        return tuple(dict.fromkeys(each.lineage for each in self.earlier))

    def apart_from(self, overlapping: frozenset[str]) -> "Inherited":
        """Return it with what is known of the new records: which lineages may hold some of them."""
        found = tuple(each.model_copy(update={"apart": each.lineage not in overlapping}) for each in self.earlier)
        return Inherited(self.option, self.model, found)

    def check(self, declared: Declared, feature_map: FeatureMap, unit: str | None) -> FeatureMap:
        """Return the feature map that both have: this model's, with the quantiles that were released for it.

        Raises WrongOption for what differs: the new rows would mean something else to its weights.
        """
        certificate = self.model.certificate
        agree: tuple[tuple[str, object, object], ...] = (
            ("classes", certificate.classes, tuple(declared.classes)),
            ("columns", certificate.feature_names, tuple(declared.feature_names)),
            ("way with values beyond the bounds", certificate.clips, declared.clips),
            ("privacy unit", certificate.unit, unit),
        )
        for what, mine, new in agree:
            if mine != new:
                raise self._differs(what, mine, new)
        theirs, ours = (_public_parts(each) for each in (certificate.feature_map, feature_map))
        for what, name in (("columns", "schema"), ("lower", "lower bounds"), ("upper", "upper bounds")):
            if theirs[what] != ours[what]:
                raise self._differs(name, None, None)
        if theirs["kind"] != ours["kind"]:
            by = OptionName("encoder") if theirs["kind"] == "encoder" else OptionName("features", str(theirs["kind"]))
            remedy = "choose that model's, with " + by
            raise WrongOption(self.option, f"is a model on {theirs['kind']}, and not on {ours['kind']}", remedy=remedy)
        for what in sorted(theirs.keys() | ours.keys()):
            if theirs.get(what) != ours.get(what):
                raise self._differs(f"feature map's {what.replace('_', ' ')}", theirs.get(what), ours.get(what))
        own: FeatureMap = certificate.feature_map
        return own

    def layers(self, widths: tuple[int, ...], activation: str) -> tuple[Floats, list[tuple[Floats, Floats]]]:
        """Return the centre (D,) of its inputs, and weights (inputs, outputs) and biases of its layers.

        widths: of the network that shall begin at it, inputs first; activation: of its hidden layers. What is returned
        takes inputs of length 1. Raises WrongOption where it is no such network.
        """
        classifier = self._classifier()
        if classifier is None or classifier.centre is None:
            raise WrongOption(
                self.option,
                f"is of the kind {self.model.certificate.release!r}, whose weights belong to rows of another scale: "
                "the steps take rows around a released mean",
                remedy="take class sums, or a model of DP-SGD",
            )
        layers = [(weights.copy(), biases.copy()) for weights, biases in classifier.layers]
        own = (len(layers[0][0]), *(len(biases) for _, biases in layers))
        if own != widths:
            raise WrongOption(
                self.option,
                f"has hidden layers of the widths {list(own[1:-1])}, and this model {list(widths[1:-1])}",
                remedy="give both the same",
            )
        if len(layers) > 1 and classifier.activation != activation:
            raise WrongOption(self.option, f"has hidden units of {classifier.activation}, and this model {activation}")
        return np.array(classifier.centre), layers

    def _classifier(self) -> Classifier | None:
        certificate = self.model.certificate
        try:
            return kind_of(self.model).classifier(self.model, certificate.tiers[0].name)
        except NotExportable:
            return None

    def _differs(self, what: str, mine: object, new: object) -> WrongOption:
        shown = "" if mine is None and new is None else f": {mine!r} there, and {new!r} here"
        return WrongOption(self.option, f"is a model of another {what}{shown[:300]}", remedy="both must have the same")


def _public_parts(feature_map: FeatureMap) -> dict[str, Any]:
    """Return what was declared of a map, without what was released of records."""
    parts = feature_map.model_dump(mode="json", exclude={"released"})
    return {"columns": None, **parts}
