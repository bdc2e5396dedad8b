"""Contenders answer rightly, the check would notice if they did not, and our own source of load counts what it sees.

Peers are other people's, installed by the benchmark itself, which checks them in the same way before it loads them.
"""

import io
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from benchmarks.serving import answers, contenders
from benchmarks.serving.figures import Setting
from benchmarks.serving.generator import bodies
from benchmarks.serving.load import Body, load
from benchmarks.serving.stages import OTHER, STORE, divide, stage_of

ROOT = Path(__file__).parents[2]
FEATURES, CLASSES = 64, 5


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return contenders.train_bundle(tmp_path_factory.mktemp("bundle"), features=FEATURES, classes=CLASSES)


@pytest.fixture(scope="module")
def pay_once_bundle(tmp_path_factory):
    return contenders.train_pay_once(tmp_path_factory.mktemp("pay-once"), "class-sums", "fourier")


@pytest.mark.parametrize(
    "name",
    ["plain", *(pytest.param(one, marks=pytest.mark.slow) for one in ("ours", "pay-once", "arrays", "unprotected"))],
)
def test_every_contender_answers_correctly_under_load(name, bundle, pay_once_bundle, tmp_path):
    contender = {
        "ours": lambda: contenders.ours(bundle, features=FEATURES),
        "pay-once": lambda: contenders.pay_once(pay_once_bundle, "of a test"),
        "arrays": lambda: contenders.ours(bundle, features=FEATURES),
        "unprotected": lambda: contenders.unprotected(bundle, features=FEATURES),
        "plain": contenders.plain,
    }[name]()
    with contender.start(tmp_path) as endpoint:
        endpoint.check()
        body = endpoint.body(Setting(4, 3, npy=name == "arrays"))
        seen = load(
            endpoint.url, body, connections=4, seconds=0.2, rows=3, features=endpoint.features, key=endpoint.key,
            generator="own",
        )  # fmt: skip
        assert seen.requests >= 4
        assert seen.wrong == 0
        assert 0 < seen.p50 <= seen.p99 <= seen.p999
        uses = endpoint.server.use()
        assert all(use.peak > 0 and use.resident > 0 for use in uses)
        # Ours alone has a store beside it.
        assert any(use.name.startswith("valkey") for use in uses) == (name in ("ours", "pay-once", "arrays"))


class Stub(BaseHTTPRequestHandler):
    """Answers every row by the same distribution, or refuses."""

    protocol_version = "HTTP/1.1"
    status = 200
    answer = (0.5, 0.5)

    def do_POST(self):
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["instances"]
        content = json.dumps({"predictions": [self.answer] * len(rows)}).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def stub(request):
    handler = type("Handler", (Stub,), request.param)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/predict"
        server.shutdown()


BODY = Body('{"instances":[', "]}")


@pytest.mark.parametrize(
    ("stub", "expected", "said"),
    [
        ({}, [0.5, 0.5], None),
        ({}, [0.4999, 0.5001], "wrongly"),
        ({"answer": [0.5, 0.6]}, [0.5, 0.6], "no distribution"),
        ({"answer": [1.0]}, [0.5, 0.5], "shape"),
        ({"status": 500}, [0.5, 0.5], "says 500"),
    ],
    indirect=["stub"],
)
def test_a_wrong_answer_is_noticed(stub, expected, said):
    def check():
        answers.check(stub, BODY, answers.of("predictions"), lambda rows: np.array([expected] * len(rows)), 2, None)

    if said is None:
        check()
        return
    with pytest.raises(RuntimeError, match=said):
        check()


@pytest.mark.parametrize("stub", [{"status": 503}], indirect=True)
def test_refusals_are_counted_as_wrong(stub):
    seen = load(stub, BODY, connections=2, seconds=0.1, features=8, generator="own")
    assert seen.wrong == seen.requests > 0


@pytest.mark.parametrize("body", [BODY, Body("[", "]", nested=False), Body(npy=True)])
def test_no_row_comes_twice(body):
    source = bodies(body, 3, 50, first=1)
    rows = []
    for content in (next(source) for _ in range(20)):
        if body.npy:
            rows += np.load(io.BytesIO(content)).tolist()
        else:
            parsed = json.loads(content)
            flat = np.ravel(parsed["instances"] if body.nested else parsed)
            rows += flat.reshape(3, 50).tolist()
    assert len({tuple(row) for row in rows}) == len(rows) == 60
    assert len({tuple(row[40:]) for row in rows}) == 1
    assert all(0 <= value <= 1 for row in rows for value in row)


def test_a_body_holds_its_rows():
    rows = [[0.25, 1.0], [0.1, 0.0]]
    assert json.loads(BODY.of(rows)) == {"instances": rows}
    assert json.loads(Body("[", "]", nested=False).of(rows)) == [0.25, 1.0, 0.1, 0.0]
    assert np.load(io.BytesIO(Body(npy=True).of(rows))).tolist() == rows


def test_samples_divide_the_services_time_and_the_store_keeps_its_own():
    stages = {stage.name: stage for stage in divide(Counter({"noise": 3, OTHER: 1}), 4.0, 1.0, 1000)}
    assert stages["noise"].microseconds == 3000
    assert stages[STORE].share == 0.2
    assert sum(stage.share for stage in stages.values()) == 1
    assert stage_of(str(ROOT / "mechanisms/noise.py")) == "noise"
    assert stage_of(str(ROOT / "accounting/ledger/journal.py")) == "journal"
    assert stage_of("/usr/lib/python3/selectors.py") is None
