"""`dpserve attack --predict-url` on real servers of a scikit-learn model, each with JSON of its own."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from dpserve.audit.endpoint import EndpointError
from dpserve.probability_url import ProbabilityUrl
from dpserve.training.errors import WrongOption

COUNT = 150
OPEN_INFERENCE = {
    "inputs": [{"name": "x", "shape": ["COUNT", "WIDTH"], "datatype": "FP64", "data": "FLAT"}],
    "outputs": [{"name": "predict_proba"}],
}
DIALECTS = {
    "instances": (
        {"instances": "ROWS"},
        lambda body: body["instances"],
        lambda p: {"model": "m", "predictions": [{"label": "no", "probabilities": row} for row in p]},
    ),
    "open inference": (
        OPEN_INFERENCE,
        lambda body: np.reshape(body["inputs"][0]["data"], body["inputs"][0]["shape"]),
        lambda p: {"outputs": [{"name": "predict_proba", "shape": [len(p), 2], "data": np.ravel(p).tolist()}]},
    ),
    "bare lists": ({"input_data": "ROWS"}, lambda body: body["input_data"], lambda p: p),
    "named": (
        {"records": "NAMED"},
        lambda body: [[row["a"], row["b"], row["c"]] for row in body["records"]],
        lambda p: [{"no": one, "yes": other} for one, other in p],
    ),
}


@pytest.fixture(scope="module")
def model():
    """A forest that memorises, and its members and others."""
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(2 * COUNT, 3)), generator.integers(0, 2, 2 * COUNT)
    return RandomForestClassifier(20, bootstrap=False, random_state=0).fit(X[:COUNT], y[:COUNT]), X, y


@pytest.fixture
def serve(model):
    servers = []

    def start(read, write):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                secret = self.headers.get("Authorization") in (None, "Bearer abc")
                answer = write(model[0].predict_proba(np.asarray(read(body))).tolist()) if secret else {"no": "key"}
                content = json.dumps(answer).encode()
                self.send_response(200 if secret else 401)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/predict"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def files(run, model):
    _, X, y = model
    for name, rows in (("in.csv", slice(COUNT)), ("out.csv", slice(COUNT, None))):
        lines = [f"{a},{b},{c},{['no', 'yes'][label]}" for (a, b, c), label in zip(X[rows], y[rows], strict=True)]
        (run.folder / name).write_text("\n".join(["a,b,c,ok", *lines]) + "\n")
    return ["--members", "in.csv", "--non-members", "out.csv", "--label", "ok", "--answer-classes", "no,yes"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_server_of_each_kind_is_read(serve, model, dialect):
    template, read, write = DIALECTS[dialect]
    forest, X, _ = model
    for count in (1, 7):
        with ProbabilityUrl(
            serve(read, write), columns="abc", classes=("no", "yes"), template=json.dumps(template)
        ) as server:
            assert server.answers(X[-count:]) == pytest.approx(forest.predict_proba(X[-count:]))


def test_a_model_that_memorises_is_measured_from_the_command_line(run, serve, files):
    """Its labels are coins, so that it gets all members right and half of the others."""
    (run.folder / "key").write_text("abc\n")
    url = serve(*DIALECTS["open inference"][1:])
    more = ["--request-json", json.dumps(OPEN_INFERENCE), "--key-file", "key"]
    read = json.loads(run("attack", "--predict-url", url, *files, *more, "--records", "r.csv", "--json").stdout)
    assert read["decided"] == {"members": COUNT, "non_members": COUNT}
    assert read["convicted"] is False
    assert read["epsilon_lower_bound"] > 1
    assert max(one["interval"][0] for one in read["attacks"]) > 0.3
    header, *rows = (run.folder / "r.csv").read_text().splitlines()
    assert len(rows) == 2 * COUNT
    assert "fpr_corrected" in header
    assert "allowed" not in header


def test_what_is_missing_is_said_in_one_line(run, serve, files):
    url = serve(*DIALECTS["instances"][1:])
    run("attack", "--predict-url", url, *files[:-2], status=2)
    run("attack", "--predict-url", url, *files, "--price", "rho:1", status=2)
    run("attack", "--predict-url", url, "model", *files, status=2)
    run("attack", "model", *files, status=2)
    assert "--predict-url" in run.fails("attack", *files[:-2])
    assert "--answer-classes" in run.fails("attack", "--predict-url", url, *files[:-1], "no,yes,perhaps")
    (run.folder / "key").write_text("wrong\n")
    refused = run.fails("attack", "--predict-url", url, *files, "--key-file", "key")
    assert "401" in refused
    assert "wrong" not in refused


def test_an_answer_with_two_places_of_probabilities_needs_a_path(serve, model):
    template, read, _ = DIALECTS["instances"]
    url = serve(read, lambda p: {"raw": p, "smooth": [[0.5, 0.5]] * len(p)})
    both = {"columns": "abc", "classes": ("no", "yes"), "template": json.dumps(template)}
    with ProbabilityUrl(url, **both) as server, pytest.raises(EndpointError):
        server.answers(model[1][-9:])
    with ProbabilityUrl(url, **both, answer_path="raw") as server:
        assert server.answers(model[1][-9:]) == pytest.approx(model[0].predict_proba(model[1][-9:]))


@pytest.mark.parametrize("reply", [{}, [], "text", {"p": [[0.5, 0.6]]}, {"p": [[True, False]]}, {"labels": [1.0]}])
def test_what_is_no_probability_is_no_answer(serve, model, reply):
    template, read, _ = DIALECTS["instances"]
    url = serve(read, lambda _: reply)
    with (
        ProbabilityUrl(url, columns="abc", classes=("no", "yes"), template=json.dumps(template)) as server,
        pytest.raises(EndpointError),
    ):
        server.answers(model[1][:1])


@pytest.mark.parametrize(("url", "template"), [("host/x", '"ROWS"'), ("http://h/", "{"), ("http://h/", '{"a": 1}')])
def test_what_cannot_be_asked_is_refused(url, template):
    with pytest.raises(WrongOption):
        ProbabilityUrl(url, columns="abc", classes=("no", "yes"), template=template)
