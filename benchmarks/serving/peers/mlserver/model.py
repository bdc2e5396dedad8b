"""The network behind MLServer."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

from benchmarks.serving.network import Network


class PublicNetwork(MLModel):
    async def load(self) -> bool:
        self.network = Network()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        rows = NumpyCodec.decode_input(payload.inputs[0])
        output = NumpyCodec.encode_output("probabilities", self.network(rows))
        return InferenceResponse(model_name=self.name, outputs=[output])
