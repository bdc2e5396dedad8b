"""What holds for all tests: examples drawn alike in every run, and none of them timed."""

import pytest
from hypothesis import settings

settings.register_profile("dpserve", deadline=None, derandomize=True)
settings.load_profile("dpserve")


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
