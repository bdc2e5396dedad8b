"""A kind that answers with a number instead of classes, from another package: everything asks it for its outputs."""

import asyncio
import json
import signal

import httpx
import numpy as np
import pytest

from dpserve import AsyncClient, Client
from research.pictures.browser import open_browser

pytestmark = pytest.mark.usefixtures("another_package")
ROWS = [[30.0], [75.0]]
RATINGS = [1 + place % 5 for place in range(200)]
TRAIN = ("train", "--data", "rated.csv", "--label", "stars", "--classes", "1,2,3,4,5", "--lineage", "guests")
TRAIN += ("--bounds", "age=0:120", "ratings")
PRICED = (*TRAIN, "--rho", "0.1", "--n", 200)


@pytest.fixture
def model(run):
    lines = [f"{20 + place % 60},{stars}" for place, stars in enumerate(RATINGS)]
    (run.folder / "rated.csv").write_text("\n".join(["age,stars", *lines]) + "\n")
    run.with_others(*PRICED, "--out", "model")
    return run.folder / "model"


def test_it_is_trained_inspected_and_served_with_its_own_output(run, model):
    shown = json.loads(run.with_others("inspect", "model", "--json").stdout)
    assert (shown["release"], shown["verified"]) == ("ratings", True)
    assert "mean_rating" in run.with_others("inspect", "model").stdout
    process, address = run.start(model, "--port", 0, "--epsilon", 3, "--delta", 1e-5)
    key = run.with_others("clients", "add", "ann", "--epsilon", 3, "--delta", 1e-5).stdout.strip()
    headers = {"Authorization": f"Bearer {key}"}
    answered = httpx.post(f"{address}/predict?noise=true", json={"instances": ROWS}, headers=headers).json()
    one, other = answered["predictions"]
    assert one == other
    assert set(one) == {"mean_rating"}
    # The noise's deviation is about 5/(sqrt(0.2) 200) = 0.056: 0.6 is more than ten of them.
    assert one["mean_rating"] == pytest.approx(np.mean(RATINGS), abs=0.6)
    noise = answered["noise"]
    assert (noise["on"], noise["law"], "undecided" in noise) == ("answer", "gaussian", False)
    assert noise["lower"][0][0] < one["mean_rating"] < noise["upper"][0][0]
    tensors = httpx.get(f"{address}/v2/models/model").json()
    assert [(each["name"], each["datatype"], each["shape"]) for each in tensors["outputs"]] == [
        ("mean_rating", "FP64", [-1]),
        ("lower", "FP64", [-1, 1]),
        ("upper", "FP64", [-1, 1]),
    ]
    asked = {"inputs": [{"name": "instances", "shape": [2, 1], "datatype": "FP64", "data": [30.0, 75.0]}]}
    inferred = httpx.post(f"{address}/v2/models/model/infer", json=asked, headers=headers).json()
    assert inferred["outputs"][0]["data"] == [one["mean_rating"]] * 2
    with Client(address, key) as client:
        assert client.outputs(ROWS)["mean_rating"].tolist() == [one["mean_rating"]] * 2
        assert client.model()["outputs"] == [
            {"name": "mean_rating", "sentence": "the mean rating of the records", "type": "number"}
        ]
        for ask in (client.predict_proba, client.predict, client.answers):
            with pytest.raises(ValueError, match=r"outputs\(X\)"):
                ask(ROWS)

    async def awaited():
        async with AsyncClient(address, key) as client:
            return await client.outputs(ROWS)

    assert asyncio.run(awaited())["mean_rating"].tolist() == [one["mean_rating"]] * 2
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors


@pytest.fixture
def browser():
    try:
        with open_browser() as opened:
            yield opened
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


@pytest.mark.browser
def test_its_numbers_are_shown_on_the_page_that_charges_for_them(run, model, browser):
    process, address = run.start(model, "--port", 0, "--epsilon", 3, "--delta", 1e-5)
    key = run.with_others("clients", "add", "ann", "--epsilon", 3, "--delta", 1e-5).stdout.strip()
    said = []
    page = browser.new_page()
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    page.fill("#key", key)
    page.keyboard.press("Enter")
    page.get_by_role("radio", name="Paste").check()
    page.fill("#pasted", "30\n75")
    page.get_by_role("button", name="See the price").click()
    page.locator("#pay").click()
    shown = page.locator("#answers").inner_text()
    with Client(address, key) as client:
        (mean, _) = client.outputs(ROWS)["mean_rating"]
    assert "mean_rating" in shown
    assert f"{mean:.4g}" in shown
    assert said == []
    process.terminate()
    process.communicate(timeout=60)


@pytest.mark.slow
def test_what_takes_classes_refuses_it_with_the_reason(run, model):
    def refused(*words, status=1):
        return " ".join(run.with_others(*words, status=status).stderr.split())

    run.with_others("lineage", "set-budget", "model", "--epsilon", 3, "--delta", 1e-5)
    assert "no probabilities of classes" in refused("export", "model", "--to", "onnx")
    held_out = ("--data", "rated.csv", "--label", "stars", "--lineage", "others")
    assert "no probabilities of classes" in refused("evaluate", "model", *held_out, "--rho", "0.1")
    files = ("--members", "rated.csv", "--non-members", "rated.csv", "--label", "stars")
    assert "mean_rating" in refused("attack", "model", *files)
    program = """
from dpserve import Lineage, PrivateClassifier, Schema
from noisy_ratings.kind import Ratings
PrivateClassifier(
    Schema(classes=["1", "2"], bounds=(0, 1)),
    lineage=Lineage("guests", epsilon=3, delta=1e-6), kind=Ratings(), epsilon=1, delta=1e-6, n=2,
).fit([[0.5], [0.5]], ["1", "2"])
"""
    assert "kind=Ratings()" in run_python(run, program)


def run_python(run, program):
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=run.environment, check=False
    )
    assert done.returncode == 1
    return done.stderr
