"""State that the tests of one process share: no test may leave it changed."""

import logging

from dpserve.service.telemetry import logs
from tests.conftest import logging_as_it_was


def test_a_log_that_a_test_sets_up_ends_with_the_test():
    root = logging.getLogger()
    before = list(root.handlers), root.level
    with logging_as_it_was():
        logs.configure("json")
        assert [type(each.formatter) for each in root.handlers] == [logs.JsonLines]
    assert (root.handlers, root.level) == before
