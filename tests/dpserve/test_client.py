"""The public client against a running service."""

import asyncio
import http.server
import inspect
import itertools
import pickle
import shutil
import threading

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibrationDisplay
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import get_scorer, log_loss, roc_auc_score
from sklearn.model_selection import cross_val_score

from dpserve import AsyncClient, BudgetExhausted, Client, ServiceError

from .conftest import CommandLine

COUNT = itertools.count()
ROWS = np.array([[30.0, 5000.0], [70.0, 55000.0], [50.0, 20000.0]])


@pytest.fixture(scope="module")
def shared(tmp_path_factory, trained):
    """The command line beside a service of two models of one lineage, the second with its classes the other way round.

    Its `address` is all that tests need of the service: their clients are their own.
    """
    found = CommandLine(shutil.copytree(trained, tmp_path_factory.mktemp("client") / "owner"))
    found(*[word.replace("no,yes", "yes,no") for word in found.train], "--data", "own.csv", "--out", "turned")
    budget = ("--epsilon", 3, "--delta", 1e-6, "--price", "rho:0.001")
    process, found.address = found.start(
        "model", "turned", "--default", "model", "--port", 0, "--largest-batch", 11, *budget
    )
    yield found
    process.terminate()
    _, errors = process.communicate(timeout=60)
    found.end()
    assert "Traceback" not in errors


@pytest.fixture(scope="module")
def service(shared):
    return shared.address


@pytest.fixture
def add(shared):
    """Add a client, and return its key."""

    def added(rho):
        return shared("clients", "add", f"client-{next(COUNT)}", "--rho", rho, "--delta", 1e-6).stdout.strip()

    return added


@pytest.fixture
def key(add):
    return add(0.0105)


def test_it_predicts_and_knows_its_budget(service, key):
    with Client(service, key) as client:
        probabilities = client.predict_proba(ROWS)
        assert probabilities.shape == (3, 2)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1)
        assert set(client.predict(ROWS)) <= {"no", "yes"}
        np.testing.assert_array_equal(client.predict_proba(ROWS[::-1]), probabilities[::-1])
        assert client.budget()["queries_left"] == 7
        assert client.model()["classes"] == ["no", "yes"]


def test_answers_say_how_noisy_they_are(service, key):
    with Client(service, key) as client:
        answers = client.answers(ROWS)
        np.testing.assert_array_equal(client.predict_proba(ROWS), answers.probabilities)
        assert client.budget()["queries_left"] == 7
    assert (answers.law, answers.on) == ("gaussian", "logits")
    assert answers.scale.shape == answers.undecided.shape == (3,)
    assert (answers.scale > 0).all()
    assert answers.lower.shape == answers.upper.shape == (3, 2)
    assert (answers.lower <= answers.probabilities).all()
    assert (answers.probabilities <= answers.upper).all()


def test_exhaustion_says_whose_budget_and_by_how_much(service, key):
    with Client(service, key) as client:
        with pytest.raises(BudgetExhausted) as refusal:
            client.predict_proba(np.column_stack([np.arange(11.0), np.arange(11.0)]))
        assert refusal.value.scope == "client"
        assert refusal.value.cost == pytest.approx(0.011)
        assert refusal.value.remaining == pytest.approx(0.0105)
        assert refusal.value.status == 403
        assert client.budget()["queries_left"] == 10


def test_larger_arrays_go_in_batches(service, add):
    with Client(service, add(0.05)) as client:
        assert client.predict_proba(np.column_stack([np.arange(14.0), np.arange(14.0)])).shape == (14, 2)
        assert client.budget()["queries_left"] == 36


def test_wrong_input_is_refused_before_it_is_sent_or_by_the_service(service, key):
    with Client(service, key) as client:
        with pytest.raises(ValueError, match="two dimensions"):
            client.predict_proba(ROWS[0])
        with pytest.raises(ValueError, match=r"row 1, column 0 \('age'\) is nan"):
            client.predict_proba([[1, 2], [np.nan, 1]])
        with pytest.raises(ValueError, match=r"row 1002, column 0 \('age'\) is 121; .* from 0 to 120"):
            client.predict_proba(np.vstack([np.ones((1002, 2)), [[121, 0]]]))
        with pytest.raises(ValueError, match="row 0 has 3 values; the model takes 2"):
            client.predict_proba([[1, 2, 3]])
        with pytest.raises(ValueError, match="at least one row"):
            client.predict_proba(np.empty((0, 2)))
        assert client.budget()["queries_left"] == 10


class Frame:
    """A data frame as far as the client looks: columns with names, and values."""

    def __init__(self, names, columns):
        self.columns, self.values = names, columns

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype).T


@pytest.mark.parametrize(
    "made", [pd.DataFrame, pl.DataFrame, pa.table, lambda named: Frame([*named], [*named.values()])]
)
def test_columns_of_a_data_frame_are_matched_by_name(service, key, made):
    frame = made({"income": ROWS[:, 1], "age": ROWS[:, 0]})
    by_name = [{"income": income, "age": age} for age, income in ROWS]
    with Client(service, key) as client:
        expected = client.predict_proba(ROWS)
        for rows in (frame, by_name, Frame(range(2), ROWS.T)):
            np.testing.assert_array_equal(client.predict_proba(rows), expected)
        assert client.quote(frame)["cost"] == 0
        assert client.budget()["queries_left"] == 7


def test_a_data_frame_with_other_columns_is_refused_before_anything_is_sent(service, key):
    with Client(service, key) as client:
        with pytest.raises(ValueError, match="should match those that were passed during fit") as refusal:
            client.predict_proba(Frame(["age", "Income", "id"], [*ROWS.T, ROWS[:, 0]]))
        assert "unseen at fit time:\n- Income\n- id\n" in str(refusal.value)
        assert "yet now missing:\n- income\n" in str(refusal.value)
        with pytest.raises(ValueError, match="more than once:\n- age\n"):
            client.predict_proba(Frame(["age", "income", "age"], [*ROWS.T, ROWS[:, 0]]))
        with pytest.raises(ValueError, match="yet now missing:\n- income\n"):
            client.predict_proba([{"age": 1.0}])
        assert client.budget()["queries_left"] == 10


@pytest.mark.parametrize("made", [pd.DataFrame, pl.DataFrame, pa.table])
def test_columns_that_the_model_does_not_take_are_left_out_and_named(service, key, made):
    frame = made({"note": ["a", "b", "c"], "income": ROWS[:, 1], "age": ROWS[:, 0], "label": ["no"] * 3})
    by_name = [{"age": age, "income": income, "note": "a", "label": "no"} for age, income in ROWS]
    with Client(service, key) as client:
        for rows in (frame, by_name):
            with pytest.warns(UserWarning, match="label"):
                answers = client.predict_proba(rows)
            np.testing.assert_array_equal(answers, client.predict_proba(ROWS))
        assert client.budget()["queries_left"] == 7


def test_values_beyond_the_bounds_are_drawn_back_on_demand(service, key):
    beyond, within = np.array([[182.0, -5.0]]), np.array([[120.0, 0.0]])
    with Client(service, key) as client, Client(service, key, clip=True) as clipping:
        with pytest.raises(ValueError, match="clip=True"):
            client.predict_proba(beyond)
        np.testing.assert_array_equal(clipping.predict_proba(beyond), client.predict_proba(within))
        frame = pd.DataFrame({"income": beyond[:, 1], "age": beyond[:, 0]})
        assert clipping.answers(frame).probabilities.tolist() == client.predict_proba(within).tolist()
        assert clipping.quote(beyond)["cost"] == 0
        with pytest.raises(ValueError, match="is inf"):
            clipping.predict_proba([[np.inf, 0.0]])
        assert client.budget()["queries_left"] == 9


def test_what_cannot_be_a_key_or_a_url_is_refused_without_repeating_the_key(service):
    for key in ("", "secret key", "sécret"):
        with pytest.raises(ValueError, match="visible ASCII") as refusal:
            Client(service, key)
        assert "cret" not in str(refusal.value)
    with pytest.raises(ValueError, match=r"^AsyncClient\(URL, KEY\) needs an API key"):
        AsyncClient(service)
    for url in ("127.0.0.1:8000", "ftp://host", ""):
        with pytest.raises(ValueError, match="must begin with http"):
            Client(url, "key")


def test_a_client_shows_whom_it_asks_and_not_its_key():
    assert repr(Client("http://host:8000", "dp_secret", model="b")) == "Client('http://host:8000', model='b')"


def test_refusals_can_be_pickled(service, key):
    from_a_file = key + "\n"
    with Client(service, from_a_file) as client, pytest.raises(BudgetExhausted) as refusal:
        client.predict_proba(np.column_stack([np.arange(11.0), np.arange(11.0)]))
    again = pickle.loads(pickle.dumps(refusal.value))
    assert (type(again), str(again), again.scope, again.cost) == (
        BudgetExhausted,
        str(refusal.value),
        "client",
        refusal.value.cost,
    )


def test_to_scikit_learn_it_is_a_fitted_classifier(service, add):
    """Its classes are not in the order that metrics take for granted."""
    key = add(0.02)
    X = np.array([[21.0, 1000.0], [35.0, 15000.0], [60.0, 40000.0], [78.0, 58000.0]])
    y = np.array(["no", "no", "yes", "yes"])
    with (
        Client(service, key, model="turned") as plain,
        Client(service, key, model="turned", sorted_classes=True) as client,
    ):
        np.testing.assert_array_equal(client.predict_proba(X), plain.predict_proba(X)[:, ::-1])
        np.testing.assert_array_equal(client.predict(X), plain.predict(X))
        with pytest.raises(ValueError, match=r"classes are yes, no, .* sorted_classes=True"):
            get_scorer("roc_auc")(plain, X, y)
        assert client.classes_.tolist() == ["no", "yes"]
        assert is_classifier(client)
        assert clone(client) is client
        of_yes = plain.predict_proba(X)[:, 0]
        assert get_scorer("accuracy")(client, X, y) == client.score(X, y) == np.mean((of_yes > 0.5) == (y == "yes"))
        assert get_scorer("roc_auc")(client, X, y) == roc_auc_score(y == "yes", of_yes)
        assert get_scorer("neg_log_loss")(client, X, y) == pytest.approx(-log_loss(y == "yes", of_yes))
        assert CalibrationDisplay.from_estimator(client, X, y, pos_label="yes").y_prob.tolist() == of_yes.tolist()
        assert len(cross_val_score(FrozenEstimator(client), X, y, cv=2)) == 2
        assert client.budget()["queries_left"] == 16  # each row was paid for once, whoever asked for it


def test_a_wrong_key_and_a_dead_service(service):
    with Client(service, "wrong") as client, pytest.raises(ServiceError, match="not known") as refusal:
        client.budget()
    assert refusal.value.kind.endswith("unauthenticated")
    with (
        Client("http://127.0.0.1:9", "key", attempts=2) as client,
        pytest.raises(ServiceError, match="does not answer"),
    ):
        client.budget()


@pytest.fixture
def refusing():
    """A server that answers 429 as often as it is told to, with the Retry-After that it is told, and then an answer."""
    told = {"times": 0, "after": "0", "asked": 0}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            told["asked"] += 1
            refused = told["asked"] <= told["times"]
            body = b'{"type": "urn:dpserve:problem:too-many-requests", "detail": "too many"}' if refused else b"{}"
            self.send_response(429 if refused else 200)
            if refused:
                self.send_header("Retry-After", told["after"])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", told
    server.shutdown()
    server.server_close()


def test_it_waits_as_long_as_the_rate_limit_says_and_asks_again(refusing, monkeypatch):
    url, told = refusing
    paused = []
    monkeypatch.setattr("time.sleep", paused.append)
    told |= {"times": 2, "after": "7"}
    with Client(url, "x" * 3000) as client:
        assert client.budget() == {}
    assert told["asked"] == 3
    assert len(paused) == 2
    assert all(7 <= pause <= 12 for pause in paused)


@pytest.mark.parametrize("after", ["3600", "", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_it_does_not_wait_an_hour(refusing, after):
    url, told = refusing
    told |= {"times": 1, "after": after}
    with Client(url, "key") as client, pytest.raises(ServiceError) as refusal:
        client.budget()
    assert refusal.value.status == 429
    assert told["asked"] == 1


class TestAsync:
    """`AsyncClient` sends what `Client` sends."""

    def test_it_answers_as_the_other_client_does(self, service, key):
        async def ask():
            async with AsyncClient(service, key) as client:
                probabilities = await client.predict_proba(ROWS)
                assert (await client.quote(ROWS))["cost"] == 0
                answers = await client.answers(ROWS)
                np.testing.assert_array_equal(answers.probabilities, probabilities)
                assert (await client.budget())["queries_left"] == 7
                receipts = [receipt async for receipt in client.receipts()]
                assert [receipt["charged_rows"] for receipt in receipts] == [3]
                swapped = pd.DataFrame({"income": ROWS[:, 1], "age": ROWS[:, 0]})
                return probabilities, await client.predict(swapped), (await client.model())["classes"]

        probabilities, names, classes = asyncio.run(ask())
        with Client(service, key) as client:
            np.testing.assert_array_equal(client.predict_proba(ROWS), probabilities)
            np.testing.assert_array_equal(client.predict(ROWS), names)
            assert client.model()["classes"] == classes
            assert client.budget()["queries_left"] == 7

    def test_clients_ask_at_once(self, service, key):
        async def ask():
            async with AsyncClient(service, key) as client:
                await client.model()
                return await asyncio.gather(*(client.predict_proba(ROWS[[row]]) for row in (0, 1, 2, 0, 1, 2)))

        each = asyncio.run(ask())
        with Client(service, key) as client:
            np.testing.assert_array_equal(np.concatenate(each), np.tile(client.predict_proba(ROWS), (2, 1)))
            assert client.budget()["queries_left"] == 7

    def test_it_asks_again_and_gives_up_alike(self, refusing, monkeypatch):
        url, told = refusing
        paused = []

        async def pause(seconds):
            paused.append(seconds)

        monkeypatch.setattr("asyncio.sleep", pause)
        told |= {"times": 2, "after": "7"}

        async def ask(url):
            async with AsyncClient(url, "key", attempts=3) as client:
                return await client.budget()

        assert asyncio.run(ask(url)) == {}
        assert len(paused) == 2
        assert all(7 <= pause <= 12 for pause in paused)
        with pytest.raises(ServiceError, match="does not answer"):
            asyncio.run(ask("http://127.0.0.1:9"))

    def test_its_methods_are_those_of_the_other(self):
        for name in ("predict_proba", "answers", "predict", "quote", "budget", "receipts", "model", "__init__"):
            assert (
                inspect.signature(getattr(AsyncClient, name)).parameters.keys()
                == inspect.signature(getattr(Client, name)).parameters.keys()
            )
