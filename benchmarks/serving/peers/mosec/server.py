"""The network behind mosec."""

import numpy as np
from mosec import Server, Worker

from benchmarks.serving.network import Network


class PublicNetwork(Worker):
    def __init__(self):
        self.network = Network()

    def forward(self, data):
        return self.network(np.asarray(data["x"], dtype=np.float32)).tolist()


if __name__ == "__main__":
    server = Server()
    server.append_worker(PublicNetwork)
    server.run()
