"""Nothing that was computed from a row gets into a log: not by an exception's text, a cause's, or a callback's."""

import asyncio
import io
import itertools
import json
import logging
import os
import sys

import msgspec
import pytest

from dpserve.accounting.ledger import LedgerUnavailable
from dpserve.service.http.refusals import as_problem
from dpserve.service.telemetry import logs
from dpserve.service.telemetry.logs import JsonLines, LogLine, RequestLog, TextLines, request_id, unforeseen
from dpserve.training.kinds.head.bundle import CertifiedHead

MARKED = 0.31415926535
MARK = "31415"


@pytest.fixture(params=[TextLines, JsonLines])
def written(request):
    """Give a function that returns what the root logger's handler wrote, for each format."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(request.param())
    logging.getLogger().addHandler(handler)
    yield stream.getvalue
    logging.getLogger().removeHandler(handler)


class Telling(CertifiedHead):
    """A head that fails with the row's own features, and what it made of them, in the error's text."""

    def logits(self, phi):
        try:
            raise ZeroDivisionError(f"the features are {phi}")
        except ZeroDivisionError as error:
            raise RuntimeError(f"no logits for {phi.tolist()}", phi) from error


def test_a_feature_in_an_errors_text_is_neither_logged_nor_answered(start, head, written):
    service = start(Telling(head.certificate, head.weights, head.tensors, head.noise_key))
    key = service.add_client()
    row = [MARKED, 0.2, 0.3, 0.4]
    tensor = {"name": "instances", "shape": [1, 4], "datatype": "FP64", "data": row}
    for path, body in (("/predict", {"instances": [row]}), ("/v2/models/colours/infer", {"inputs": [tensor]})):
        answer = service.http(key).post(path, json=body)
        assert answer.status_code == 500
        assert MARK not in answer.text + str(answer.headers)
    assert MARK not in written()
    assert "RuntimeError from ZeroDivisionError while answering" in written()
    assert "test_logs.py:" in written()


def test_what_a_store_says_of_a_call_is_not_logged(written):
    cause = ConnectionResetError(104, f"unknown command, with args beginning with: '{MARKED}'")
    with pytest.raises(LedgerUnavailable) as refused:
        raise LedgerUnavailable(f"the ledger's store reports: args beginning with: '{MARKED}'") from cause
    assert MARK not in str(as_problem(refused.value))
    assert MARK not in written()
    assert "LedgerUnavailable from ConnectionResetError ECONNRESET" in written()
    assert written().count("\n") == 1  # of each request in an outage


def test_a_logged_exception_is_its_type_and_its_places(written):
    try:
        raise ValueError(MARKED)
    except ValueError:
        logging.getLogger("of.a.library").exception("it failed")
    assert MARK not in written()
    assert "ValueError" in written()
    assert "test_logs.py:" in written()


@pytest.mark.parametrize("name", ["a\nb", "a\r\nb", "a\x1b[2Kb", "a\u2028b", "a\x85b", "a\udcffb"], ids=ascii)
@pytest.mark.parametrize("formatter", [TextLines, JsonLines])
def test_a_name_that_is_quoted_adds_no_line_and_moves_no_cursor(formatter, name):
    line = formatter().format(logging.makeLogRecord({"msg": "%s is not served", "args": (name,)}))
    assert line.isprintable()
    assert logs.announcement(f"serving {name}", "text").isprintable()


def test_causes_that_go_in_a_circle_are_each_named_once():
    error, cause = ValueError(), KeyError()
    error.__cause__, cause.__cause__ = cause, error
    assert list(itertools.islice(logs.error_chain(error), 5)) == [error, cause]
    assert logs.kinds(error) == "ValueError from KeyError"
    assert logs.places(error) == []


async def _forgotten():
    asyncio.get_running_loop().set_exception_handler(unforeseen)

    async def fails(row):
        raise ValueError(row)

    task = asyncio.create_task(fails(MARKED))
    await asyncio.wait([task])
    del task  # asyncio speaks of an exception that nobody asked for when the task goes
    asyncio.get_running_loop().call_soon(lambda row: 1 / (row - row), MARKED)
    asyncio.get_running_loop().call_exception_handler({"message": f"of {MARKED}"})
    await asyncio.sleep(0)


def test_what_an_event_loop_has_nobody_to_tell_of_is_told_without_values(written):
    asyncio.run(_forgotten())
    assert MARK not in written()
    for kind in ("ValueError", "ZeroDivisionError", "without an exception"):
        assert kind in written()


def test_a_line_of_json_stays_one_line(written):
    try:
        raise ValueError(MARKED)
    except ValueError:
        line = JsonLines().format(logging.makeLogRecord({"msg": "it failed", "exc_info": sys.exc_info()}))
    assert "\n" not in line
    found = json.loads(line)
    assert found["error"] == "ValueError"
    assert [place.rpartition("/")[2].partition(":")[0] for place in found["places"]] == ["test_logs.py"]


def test_a_line_says_which_worker_wrote_it(monkeypatch):
    record = logging.LogRecord("dpserve", logging.INFO, "", 0, "hello", None, None)
    text = TextLines("%(name)s%(worker)s: %(message)s")
    assert text.format(record) == "dpserve: hello"
    assert "worker" not in json.loads(JsonLines().format(record))
    monkeypatch.setattr(logs, "worker", None)
    logs.name_worker()
    assert text.format(record) == f"dpserve worker {os.getpid()}: hello"
    assert json.loads(JsonLines().format(record))["worker"] == os.getpid()


def test_an_outage_that_fails_every_request_is_one_line_a_second():
    now = [0.0]
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextLines("%(message)s"))
    handler.addFilter(logs.OnceASecond(lambda: now[0]))

    def say(level, text, *arguments, name=logs.REQUESTS):
        handler.handle(logging.LogRecord(name, level, "", 0, text, arguments, None))

    for _ in range(500):
        say(logging.ERROR, "the store is gone (%s)", "TimeoutError")
        say(logging.INFO, "a client came")
        say(logging.ERROR, "a model is not served", name="dpserve")
    say(logging.ERROR, "the store is gone (%s)", "OSError")
    now[0] = 1.0
    say(logging.ERROR, "the store is gone (%s)", "TimeoutError")
    lines = stream.getvalue().splitlines()
    errors = [line for line in lines if "store" in line]
    assert lines.count("a client came") == lines.count("a model is not served") == 500
    assert errors[:2] == ["the store is gone (TimeoutError)", "the store is gone (OSError)"]
    assert len(errors) == 3
    assert "499" in errors[2]


def test_a_service_holds_back_what_repeats(monkeypatch):
    monkeypatch.setattr(logging, "basicConfig", lambda **given: configured.update(given))
    configured = {}
    logs.configure("text")
    (handler,) = configured["handlers"]
    assert [type(each) for each in handler.filters] == [logs.OnceASecond]


def test_fields_of_another_librarys_record_are_not_written():
    record = logging.makeLogRecord({"msg": "it failed", "fields": {"row": MARKED}})
    assert "row" not in json.loads(JsonLines().format(record))


@pytest.mark.parametrize("worker", [None, 7])
def test_a_requests_line_has_the_fields_of_a_line_and_no_others(capfd, monkeypatch, worker):
    monkeypatch.setattr(logs, "worker", worker)
    token = request_id.set("one")
    try:
        RequestLog().write("BREW", "/predict", 200, 0.25)
    finally:
        request_id.reset(token)
    line = msgspec.json.decode(capfd.readouterr().err, type=LogLine)
    assert (line.request_id, line.method, line.route, line.status, line.seconds) == (
        "one",
        "other",
        "/predict",
        200,
        0.25,
    )
    assert line.worker == (msgspec.UNSET if worker is None else worker)
