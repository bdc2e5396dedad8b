"""The calls and files of ours that one prediction crosses: the same counts on every machine."""

from importlib.util import find_spec

import pytest

from benchmarks.request_path import METERED, PAY_ONCE, traces

MOST = {METERED: (115, 33, 67), PAY_ONCE: (55, 21, 33) if find_spec("simdjson") else (59, 21, 34)}
"""Calls, files and changes of file: what was reached. A change that needs more says why.

While functions are traced simdjson may take what it parsed before to be in use, and then another parser reads the row,
by a call more. On Python 3.14, where it is not installed, another parser reads all rows.
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return traces(tmp_path_factory.mktemp("ledgers"))


@pytest.mark.parametrize("name", MOST)
def test_a_prediction_crosses_no_more_of_our_code_than_it_did(found, name):
    trace = found[name]
    calls, files, changes = MOST[name]
    assert trace.calls <= calls
    assert trace.files <= files
    assert trace.changes <= changes


def test_the_trace_sees_the_whole_way(found):
    for trace in found.values():
        files = {file for file, _ in trace.entered}
        assert {"service/http/protocol.py", "service/http/codec.py", "service/batcher.py"} <= files
    assert "accounting/ledger/store.py" in {file for file, _ in found[METERED].entered}
