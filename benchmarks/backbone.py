"""What privacy, a durable charge and HTTP add to the forward pass of a deep network: ResNet-50 at batch 64.

The weights are random, for speed does not depend on them. `forward` is the network alone in this process, from scaled
rows in the host's memory to features there; `request` is a whole request of as many rows over HTTP, sent as float32 in
a NumPy file, to a service that computes on the same device. Medians of rounds that take turns.

Run: python -m benchmarks.backbone [--device cpu|cuda] [--side 224] [--batch 64] [--rounds 5] [--out results.json]
"""

import argparse
import io
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save

from benchmarks.serving import contenders, results
from training.backbones.architectures import untrained
from training.backbones.extractor import Extractor, load_network

_GOAL = 0.1


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--architecture", choices=("resnet18", "resnet50"), default="resnet50")
    parser.add_argument("--side", type=int, default=224, help="of the square images, in pixels")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)  # as the service has
    with tempfile.TemporaryDirectory() as name:
        part = _measure(Path(name), options)
    for what in ("forward", "request"):
        print(f"{what:10}{part[what] * 1e3:10.1f} ms")
    print(f"{'the rest':10}{part['rest']:10.1%} of the forward pass (goal: below {_GOAL:.0%} on a GPU)")
    results.merge(options.out, {f"backbone on {options.device}": part})


def _measure(folder: Path, options: argparse.Namespace) -> results.Document:
    features = 3 * options.side**2
    content = save(_random_weights(options.architecture, features))
    extractor = Extractor(load_network(options.architecture, content, features), options.device)
    generator = np.random.default_rng(0)
    forward, request = [], []
    serving = contenders.ours(
        _bundle(folder, content, features, options), "--device", options.device,
        "--largest-batch", str(options.batch), features=features,
    )  # fmt: skip
    with serving.start(folder) as endpoint:
        for number in range(options.rounds + 1):
            rows = generator.random((options.batch, features), dtype=np.float32)
            taken = _seconds(lambda rows=rows: extractor.together(rows)), _seconds(_asking(endpoint, rows))
            if number:  # the first is not counted
                forward.append(taken[0])
                request.append(taken[1])
    medians = {"forward": statistics.median(forward), "request": statistics.median(request)}
    rest = statistics.median(whole / alone - 1 for whole, alone in zip(request, forward, strict=True))
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    shape = {"architecture": options.architecture, "side": options.side, "batch": options.batch}
    return results.stamped(medians | shape | {"rest": rest, "rounds": options.rounds, "device": device})


def _random_weights(architecture: str, features: int) -> dict[str, np.ndarray]:
    torch.manual_seed(0)
    state = untrained(architecture, features).module.state_dict()
    return {name: tensor.numpy() for name, tensor in state.items() if not name.endswith("num_batches_tracked")}


def _bundle(folder: Path, content: bytes, features: int, options: argparse.Namespace) -> Path:
    generator = np.random.default_rng(1)
    np.savez(folder / "records.npz", X=generator.random((8, features)), y=np.arange(8) % 4)
    (folder / "weights.safetensors").write_bytes(content)
    contenders.run_dpserve(
        folder, "train", "--data", folder / "records.npz", "--out", folder / "deep", "--classes", "0,1,2,3",
        "--lineage", "images", "--bounds", "0:1", "--lam", 10,
        "--backbone", options.architecture, "--device", options.device,
        "--backbone-weights", folder / "weights.safetensors",
    )  # fmt: skip
    return folder / "deep"


def _asking(endpoint: contenders.Endpoint, rows: np.ndarray) -> Callable[[], None]:
    body = io.BytesIO()
    np.save(body, rows)
    headers = {"Authorization": f"Bearer {endpoint.key}"}
    headers |= {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}
    request = urllib.request.Request(endpoint.url, body.getvalue(), headers, method="POST")

    def ask() -> None:
        with urllib.request.urlopen(request, timeout=300) as answer:
            probabilities = np.load(io.BytesIO(answer.read()))
        if probabilities.shape != (len(rows), 4):
            raise RuntimeError(f"the answer has the shape {probabilities.shape}")

    return ask


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
