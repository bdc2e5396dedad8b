"""From records to a published network, as the paper trains it. Nothing is proved about the result."""

import numpy as np
import torch

from mechanisms.randomness import NoiseKey
from training.certificate import fresh_fields
from training.data.records import Records
from training.exact_network import exact_layers
from training.published.batched import Assignment, train_stack
from training.published.bounds import Topology
from training.published.bundle import PublishedNetwork
from training.published.certificate import ScaledInputs, UnprovenCertificate, claims
from training.published.network import one_model
from training.published.setting import Activation, Objective, Recipe


def train_published(
    records: Records,
    name: str,
    lineage: str,
    *,
    hidden: tuple[int, ...] = (128,),
    objective: Objective = "per-record-and-class",
    alpha: float = 1.0,
    epochs: int = 100,
    l2_regulariser: float = 0.001,
    activation: Activation = "tanh",
    seed: int = 0,
) -> PublishedNetwork:
    """Train Table IV's network on the records. The digest in its certificate is zero until it was saved."""
    declaration = records.declaration
    inputs = ScaledInputs(lower=declaration.lower, upper=declaration.upper)
    lower, upper = np.asarray(inputs.lower), np.asarray(inputs.upper)
    topology = Topology(declaration.features, hidden, len(declaration.classes))
    certificate = UnprovenCertificate.model_validate(
        fresh_fields(name, declaration.classes, declaration.feature_names, inputs, lineage)
        | {
            "objective": objective,
            "alpha": alpha,
            "hidden": hidden,
            "activation": activation,
            "records": len(records),
            "l2_regulariser": l2_regulariser,
        }
        | claims(topology, len(records), l2_regulariser)
    )
    X = torch.from_numpy(((records.X - lower) / (upper - lower)).astype(np.float32))
    recipe = Recipe(topology, objective, epochs=epochs, l2_regulariser=l2_regulariser, activation=activation)
    assignment = Assignment(torch.arange(len(records))[None], (seed,), (alpha,))
    model = one_model(train_stack(X, torch.from_numpy(records.y), assignment, recipe), 0)
    layers = tuple((layer.weight.double().numpy(), layer.bias.double().numpy()) for layer in model)
    return PublishedNetwork(certificate, exact_layers(layers, activation), NoiseKey.fresh())
