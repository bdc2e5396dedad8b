"""Settings of all tests: the same examples in every run, and none of them timed."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything loads them: the workers of a parallel run share the processors, and threads would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def torch_arithmetic(request):
    """Exact products by PyTorch: on the processor, and on CUDA where there is one."""
    from training.devices import TorchArithmetic

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", "0")
        yield TorchArithmetic(request.param)


MARKERS = {"faults": "faults", "research": "research", "service/page": "browser"}
"""The marker of every test below a folder."""

settings.register_profile("dpserve", deadline=None, derandomize=True)
settings.load_profile("dpserve")


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        for folder, marker in MARKERS.items():
            if item.path.is_relative_to(here / folder):
                item.add_marker(marker)


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
