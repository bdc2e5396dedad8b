"""The network behind BentoML."""

import bentoml
import numpy as np

from benchmarks.serving.network import Network


@bentoml.service(workers=1)
class PublicNetwork:
    def __init__(self) -> None:
        self.network = Network()

    @bentoml.api
    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.network(x.astype(np.float32))
