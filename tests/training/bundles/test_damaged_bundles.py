"""Whatever lies in a bundle's folder, loading it ends soon: with the model, or with a refusal."""

import hashlib
import json
import os
import shutil
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.numpy import load, save

from dpserve.training.bundles.sealing import CERTIFICATE_FILE, EVALUATION_FILE, MODEL_FILE, _check_counts
from dpserve.training.errors import BundleError, TrainingError
from dpserve.training.kinds.kind import Job
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.registry import train_and_save
from dpserve.training.regular_files import read_regular
from dpserve.training.watchers import Unwatched
from tests.training.conftest import identity, make_records, terms

KINDS = {
    "head": (None, {"lam": 1.0}),
    "weights": ("weights", {"lam": 1.0, "price": "rho:0.3"}),
    "class-sums": ("class-sums", {"price": "rho:0.5", "n": 60}),
}
HOSTILE = [1e308, -1e308, 1e-320, 0, -1, 0.5, 2**31, 2**62, 10**30, "", "x" * 1000, None, True, [], {}, [[]]]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """A bundle of each kind that is trained at once."""
    folder, records = tmp_path_factory.mktemp("bundles"), make_records()
    for name, (kind, options) in KINDS.items():
        feature_map = identity(records, bias=0.25)
        own, more = terms(kind, options)
        job = Job(records, "model", "lineage", feature_map, folder / name, folder / "state", Unwatched(), **more)
        train_and_save(own, job)
    return folder


@pytest.fixture
def bundle(bundles, tmp_path):
    return shutil.copytree(bundles / "weights", tmp_path / "bundle")


def leaves(content, place=()):
    """Yield the place of everything in a certificate."""
    yield place
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, each in inner:
        yield from leaves(each, (*place, key))


def changed(content, place, value):
    if not place:
        return value
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[place[0]] = changed(content[place[0]], place[1:], value)
    return copy


def seal(folder, certificate, tensors, content):
    """Write what has passed for sealed, whatever it says; where it is no certificate at all, as it is."""
    (folder / CERTIFICATE_FILE).write_text(json.dumps(content))
    try:
        read = type(certificate).model_validate(content)
        model = save(tensors, metadata={"certificate": read.sealed()})
        sealed = read.with_digest_of(model).model_dump_json()
    except (ValueError, ArithmeticError):
        return
    (folder / MODEL_FILE).write_bytes(model)
    (folder / CERTIFICATE_FILE).write_text(sealed)


@given(st.data())
def test_any_value_in_a_certificate_loads_or_is_refused(bundles, tmp_path_factory, data):
    source = bundles / data.draw(st.sampled_from(sorted(KINDS)))
    content = json.loads((source / CERTIFICATE_FILE).read_text())
    place = data.draw(st.sampled_from(list(leaves(content))))
    value = data.draw(st.sampled_from(HOSTILE) | st.floats(allow_nan=False, allow_infinity=False) | st.integers())
    folder = shutil.copytree(source, tmp_path_factory.mktemp("damaged") / "bundle")
    tensors = load((source / MODEL_FILE).read_bytes())
    seal(folder, load_model(source).certificate, tensors, changed(content, place, value))
    try:
        load_model(folder)
    except TrainingError:
        pass
    finally:
        shutil.rmtree(folder.parent)


@given(st.sampled_from(sorted(KINDS)), st.sampled_from([CERTIFICATE_FILE, MODEL_FILE]), st.data())
def test_any_bytes_in_a_bundle_load_or_are_refused(bundles, tmp_path_factory, kind, name, data):
    folder = shutil.copytree(bundles / kind, tmp_path_factory.mktemp("damaged") / "bundle")
    octets = (folder / name).read_bytes()
    start = data.draw(st.integers(0, len(octets)))
    end = data.draw(st.integers(start, min(len(octets), start + 64)))
    (folder / name).write_bytes(octets[:start] + data.draw(st.binary(max_size=64)) + octets[end:])
    try:
        load_model(folder)
    except TrainingError:
        pass
    finally:
        shutil.rmtree(folder.parent)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"release": ' * 100_000,
        '{"format_version": ' + "9" * 100_000 + "}",
        '{"format_version": 2, "status": "proven", "release": "weights", "canaries": ' + "[" * 100_000,
        "\0" * 100_000,
        "null",
        '"head"',
        '{"release": []}',
    ],
    ids=lambda text: text[:20],
)
def test_a_certificate_of_brackets_is_refused(bundle, text):
    (bundle / CERTIFICATE_FILE).write_text(text)
    with pytest.raises(BundleError):
        load_model(bundle)


@pytest.mark.parametrize("part", ["{}", "[]", "0,0,0,0,0,0,0,0"])
@pytest.mark.parametrize("place", ["certificate", "evaluation", "header"])
def test_json_of_too_many_parts_is_refused_before_it_is_parsed(bundle, monkeypatch, place, part):
    count = 2**20 if part.startswith("0") else 2**19
    hostile = ',"a":[' + ",".join([part] * count) + "]}"
    text = (bundle / CERTIFICATE_FILE).read_text()
    if place == "evaluation":
        (bundle / EVALUATION_FILE).write_text('{"seal":""' + hostile)
    elif place == "header":
        header = ('{"__metadata__":{}' + hostile).encode()
        (bundle / MODEL_FILE).write_bytes(len(header).to_bytes(8, "little") + header)
        digest = hashlib.sha256((bundle / MODEL_FILE).read_bytes()).hexdigest()
        (bundle / CERTIFICATE_FILE).write_text(json.dumps(json.loads(text) | {"weights_sha256": digest}))
    else:
        (bundle / CERTIFICATE_FILE).write_text(text.rstrip().removesuffix("}") + hostile)

    parsed, loads, decode = [], json.loads, msgspec.json.decode
    monkeypatch.setattr(json, "loads", lambda text: (parsed.append(len(text)), loads(text))[1])
    monkeypatch.setattr(
        msgspec.json, "decode", lambda text, **more: (parsed.append(len(text)), decode(text, **more))[1]
    )
    tracemalloc.start()
    with pytest.raises(BundleError):
        load_model(bundle)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(parsed, default=0) < 2**16
    assert peak < 8 * len(hostile) + 2**24


def test_a_certificate_of_many_columns_loads_and_its_wrong_values_are_not_gathered(bundle):
    certificate = load_model(bundle).certificate
    content = json.loads((bundle / CERTIFICATE_FILE).read_text())
    names = [f"feature {index}" for index in range(100_000)]
    content["feature_names"] = names
    content["feature_map"] |= {"lower": [0.0] * len(names), "upper": [1.0] * len(names)}
    _check_counts(bundle, json.dumps(content).encode())
    assert type(certificate).model_validate(content).feature_names == tuple(names)
    for wrong in ({"feature_names": [0] * 100_000}, {"classes": [0] * 100_000}):
        with pytest.raises(ValidationError) as refused:
            type(certificate).model_validate(content | wrong)
        assert refused.value.error_count() < 4


def test_a_price_that_overflows_is_refused(bundle):
    content = json.loads((bundle / CERTIFICATE_FILE).read_text())
    content["releases"][0]["cost"] = "gaussian:1e308"
    (bundle / CERTIFICATE_FILE).write_text(json.dumps(content))
    with pytest.raises(BundleError):
        load_model(bundle)


ODD = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a device": lambda path: Path(path).symlink_to("/dev/zero"),
    "a terminal": lambda path: Path(path).symlink_to("/dev/tty"),
    "a link to itself": lambda path: Path(path).symlink_to(path),
    "a link to nothing": lambda path: Path(path).symlink_to(f"{path}.missing"),
    "a link to a pipe": lambda path: (os.mkfifo(f"{path}.pipe"), Path(path).symlink_to(f"{path}.pipe")),
    "a file of 1 TB": lambda path: (Path(path).touch(), os.truncate(path, 10**12)),
    "nothing": lambda path: None,
}


@pytest.mark.parametrize("name", [CERTIFICATE_FILE, MODEL_FILE])
@pytest.mark.parametrize("what", ODD)
def test_what_is_no_regular_file_of_a_possible_size_is_refused_unread(bundle, name, what):
    (bundle / name).unlink()
    ODD[what](str(bundle / name))
    with pytest.raises(BundleError):
        load_model(bundle)


def test_a_header_that_announces_more_than_there_is_is_refused(bundle):
    octets = (bundle / MODEL_FILE).read_bytes()
    content = json.loads((bundle / CERTIFICATE_FILE).read_text())
    certificate = load_model(bundle).certificate
    for length in (2**63, 2**40, len(octets), 0):
        model = length.to_bytes(8, "little") + octets[8:]
        (bundle / MODEL_FILE).write_bytes(model)
        (bundle / CERTIFICATE_FILE).write_text(
            certificate.model_validate(content).with_digest_of(model).model_dump_json()
        )
        with pytest.raises(BundleError):
            load_model(bundle)


def test_a_file_that_grew_too_large_is_not_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(path, 4)
