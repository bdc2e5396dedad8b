"""The network behind mosec, which batches requests that come within a millisecond, with the plain server's JSON."""

import msgspec
import numpy as np
from mosec import Server, Worker

from benchmarks.serving.network import Network


class PublicNetwork(Worker):
    def __init__(self):
        self.network = Network()

    def deserialize(self, data):
        return msgspec.json.decode(data)["x"]

    def serialize(self, data):
        return msgspec.json.encode(data)

    def forward(self, data):
        found = self.network(np.array([row for rows in data for row in rows], dtype=np.float32)).tolist()
        source = iter(found)
        return [[next(source) for _ in rows] for rows in data]


if __name__ == "__main__":
    server = Server()
    server.append_worker(PublicNetwork, max_batch_size=32, max_wait_time=1)
    server.run()
