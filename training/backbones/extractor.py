"""A public network at work, on a CPU or a GPU: rows that are private records apart from each other, others together."""

import hashlib
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load

from training.backbones.architectures import Network, build
from training.errors import TrainingError

Singles = NDArray[np.float32]

PLACES = {"cpu": 1, "cuda": 64}
"""How many rows the network computes at a time while it is trained upon."""

LARGEST_BATCH = 64
"""How many rows the network computes at a time when it answers."""

_UNDER_WAY = 2
"""Batches handed to a GPU at a time: one is copied while the other is computed."""


def load_network(name: str, content: bytes, features: int) -> Network:
    """Return the network `name` with the weights in a safetensors file. Raises TrainingError."""
    try:
        weights = load(content)
    except SafetensorError as error:
        raise TrainingError(f"the backbone's weights are no safetensors file: {error}") from error
    return build(name, weights, features)


class Extractor:
    """Computes a network's features on one device. Safe to call from several threads."""

    def __init__(self, network: Network, device: str = "cpu") -> None:
        """Move the network to `device`: "cpu" or "cuda". Raises TrainingError where there is no such device."""
        if device not in PLACES:
            raise TrainingError(f"a device is 'cpu' or 'cuda', not {device!r}")
        if device == "cuda" and not torch.cuda.is_available():
            raise TrainingError("there is no CUDA device that PyTorch can use here; leave --device out")
        self.device = torch.device(device)
        self.width = network.width
        self._input_shape = network.input_shape
        self._module = network.module.to(self.device)
        self._lock = threading.Lock()
        self._checked: set[int] = set()
        self._batches = [_Batch(self._input_shape, self.width, self.device) for _ in range(_batches_of(device))]

    def apart(self, rows: Singles, places: int | None = None) -> Singles:
        """Return the features (n, width) of rows (n, d), each a function of its own row and of nothing else.

        Which of a network's rounding errors a row gets depends on the size of its batch and on its place in it, as
        libraries divide their work by both; a record that came or went would move others to other places. So every
        batch has the same size (`places`), and a row's place is a digest of the row itself: which rows share its batch
        changes, and no row's arithmetic looks at another's. Unfilled places hold zeros. Algorithms whose result is
        not the same each time are refused by PyTorch meanwhile. Raises TrainingError if the device is found to break
        this on public rows.
        """
        count = PLACES[self.device.type] if places is None else places
        with self._lock, torch.inference_mode(), _reproducible():
            if count not in self._checked:
                self._check_apart(count, rows.shape[1])
                self._checked.add(count)
            return self._apart(rows, count)

    def together(self, rows: Singles) -> Singles:
        """Return the features (n, width) of rows (n, d), as fast as the device allows."""
        features = np.empty((len(rows), self.width), dtype=np.float32)
        under_way: deque[tuple[int, int, _Batch]] = deque()
        with self._lock, torch.inference_mode():
            for number, start in enumerate(range(0, len(rows), LARGEST_BATCH)):
                if len(under_way) == len(self._batches):
                    _take(under_way, features)
                batch = self._batches[number % len(self._batches)]
                part = rows[start : start + LARGEST_BATCH]
                batch.begin(self._module, part)
                under_way.append((start, len(part), batch))
            while under_way:
                _take(under_way, features)
        return features

    def _apart(self, rows: Singles, places: int) -> Singles:
        features = np.empty((len(rows), self.width), dtype=np.float32)
        batch = np.empty((places, rows.shape[1]), dtype=np.float32)
        given = torch.empty((places, *self._input_shape), device=self.device)
        for members in _batches_by_place(rows, places):
            batch[:] = 0
            for place, index in members.items():
                batch[place] = rows[index]
            given.copy_(torch.from_numpy(batch).view(given.shape))
            computed = self._module(given).cpu().numpy()
            for place, index in members.items():
                features[index] = computed[place]
        return features

    def _check_apart(self, places: int, features: int) -> None:
        """Compute public rows among different companions. Whatever comes of it, it says nothing of any record."""
        rows = np.random.RandomState(0).uniform(size=(2 * places, features)).astype(np.float32)
        companions = self._apart(rows, places)
        among_others = self._apart(rows[::-1].copy(), places)[::-1]
        alone = np.concatenate([self._apart(row[None], places) for row in rows[:4]])
        if not (np.array_equal(companions, among_others) and np.array_equal(companions[: len(alone)], alone)):
            raise TrainingError(
                f"on {self.device.type} a row's features change with the rows beside it, so that one record would "
                "move others' features, which no proof here covers: compute them elsewhere (--device cpu)"
            )


class _Batch:
    """Memory for one batch on its way: pinned on the host's side, so that a GPU copies it while it computes."""

    def __init__(self, input_shape: tuple[int, ...], width: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._given = torch.empty((LARGEST_BATCH, *input_shape), pin_memory=pinned)
        self._computed = torch.empty((LARGEST_BATCH, width), pin_memory=pinned)
        self._on_device = torch.empty((LARGEST_BATCH, *input_shape), device=device) if pinned else self._given
        self._stream = torch.cuda.Stream(device) if pinned else None  # type: ignore[no-untyped-call]

    def begin(self, module: torch.nn.Module, rows: Singles) -> None:
        """Hand the rows to the device; on a GPU, return while it works."""
        n = len(rows)
        self._given[:n].copy_(torch.from_numpy(np.ascontiguousarray(rows)).view(n, *self._given.shape[1:]))
        with torch.cuda.stream(self._stream):  # None: as if it were not there
            if self._on_device is not self._given:
                self._on_device[:n].copy_(self._given[:n], non_blocking=True)
            self._computed[:n].copy_(module(self._on_device[:n]), non_blocking=True)

    def end(self, rows: int) -> Singles:
        """Wait for the device and return the features of the rows that were handed to it."""
        if self._stream is not None:
            self._stream.synchronize()
        computed: Singles = self._computed[:rows].numpy()
        return computed


def place_of(row: Singles, places: int) -> int:
    """Return the place of a row in every batch that it is computed in: of its own content alone."""
    return int.from_bytes(hashlib.sha256(row.tobytes()).digest()[:8], "little") % places


def _batches_by_place(rows: Singles, places: int) -> Iterator[dict[int, int]]:
    """Yield batches, by place the index of the row there, until every row had its turn."""
    waiting: dict[int, deque[int]] = {}
    for index, row in enumerate(rows):
        waiting.setdefault(place_of(row, places), deque()).append(index)
    while waiting:
        yield {place: indices.popleft() for place, indices in waiting.items()}
        waiting = {place: indices for place, indices in waiting.items() if indices}


def _take(under_way: "deque[tuple[int, int, _Batch]]", features: Singles) -> None:
    start, count, batch = under_way.popleft()
    features[start : start + count] = batch.end(count)


def _batches_of(device: str) -> int:
    return _UNDER_WAY if device == "cuda" else 1


@contextmanager
def _reproducible() -> Iterator[None]:
    """Have PyTorch choose algorithms that give the same result each time, or raise."""
    # cuBLAS reads it when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    deterministic, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=deterministic)
        torch.backends.cudnn.benchmark = benchmark
