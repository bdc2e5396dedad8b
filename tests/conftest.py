"""What holds for all tests: examples drawn alike in every run, and none of them timed."""

from hypothesis import settings

settings.register_profile("dpserve", deadline=None, derandomize=True)
settings.load_profile("dpserve")
