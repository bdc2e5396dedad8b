"""The network behind LitServe, which imports torch whatever it serves."""

import sys

import litserve as ls
import numpy as np

from benchmarks.serving.network import Network


class PublicNetwork(ls.LitAPI):
    def setup(self, device):  # noqa: ARG002
        self.network = Network()

    def decode_request(self, request):
        return np.asarray(request["x"], dtype=np.float32)

    def predict(self, x):
        return self.network(x)

    def encode_response(self, output):
        return {"probabilities": output.tolist()}


if __name__ == "__main__":
    ls.LitServer(PublicNetwork(), accelerator="cpu", workers_per_device=1).run(
        port=int(sys.argv[1]), host="127.0.0.1", generate_client_file=False, log_level="warning"
    )
