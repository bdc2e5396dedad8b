"""Settings of all tests: the same examples and the same noise in every run, and none of them timed."""

import gc
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from dpserve.mechanisms import randomness
from tests.seeded import NamedWords

# Before anything loads them: the workers of a parallel run share the processors, and threads would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def torch_arithmetic(request):
    """Exact products by PyTorch: on the processor, and on CUDA where there is one."""
    from dpserve.training.devices import TorchArithmetic

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", "0")
        yield TorchArithmetic(request.param)


MARKERS = {"faults": "faults", "research": "research", "service/page": "browser"}
"""The marker of every test below a folder."""

WORDS = NamedWords(randomness.keystream, secrets.token_bytes)
"""The noise of this process's tests, by their names: a failure is met again by whoever runs the test again."""

settings.register_profile("dpserve", deadline=None, derandomize=True)
settings.load_profile("dpserve")


def pytest_addoption(parser):
    parser.addoption("--fresh-noise", action="store_true", help="take the operating system's randomness in all tests")


def pytest_configure(config):
    if not config.getoption("fresh_noise"):
        randomness.keystream = WORDS.keystream
        secrets.token_bytes = WORDS.token_bytes


@contextmanager
def logging_as_it_was() -> Iterator[None]:
    """Undo what a test sets up for a log: a command's handler would write to a stream that is closed by then."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.fixture
def anyio_backend():
    """The service runs on asyncio alone; without this AnyIO's plugin would ask for Trio too."""
    return "asyncio"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    named = WORDS.named(None if item.get_closest_marker("fresh_noise") else item.nodeid)
    with named, logging_as_it_was():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """Draw what several tests share by its own name, whichever of them is first."""
    if fixturedef.scope == "function":
        return (yield)
    # An index stands for the parameter, whose words may be an address in memory.
    with WORDS.named(f"{fixturedef.baseid}::{fixturedef.argname}[{getattr(request, 'param_index', 0)}]"):
        return (yield)


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        for folder, marker in MARKERS.items():
            if item.path.is_relative_to(here / folder):
                item.add_marker(marker)


def pytest_collection_finish():
    """Leave what collecting made out of full collections: each service that a test starts makes one."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    if not getattr(item.obj, "is_hypothesis_test", False):
        return (yield)
    # Hypothesis asks the collector who holds its generator, and would warn that nobody does among what is frozen.
    gc.unfreeze()
    try:
        return (yield)
    finally:
        gc.freeze()


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
