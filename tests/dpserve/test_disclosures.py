"""The list of all that leaves: complete, and in it nobody sees more than the types allow."""

import json
import os
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest

from dpserve.accounting.disclosure import Disclosed, Reader, Released, disclosed_fields
from dpserve.disclosures import LOOSE, everything, listed
from dpserve.service.http import schemas
from dpserve.training.kinds.kind import PayOnceKind
from dpserve.training.kinds.registry import all_kinds
from tests.command_line import ran_program

EVERYTHING = everything()


@pytest.mark.parametrize("leaving", EVERYTHING, ids=lambda each: each.where)
def test_no_reader_sees_a_field_that_its_type_does_not_allow(leaving):
    assert [field for field in leaving.fields() if field.disclosure.least > leaving.reader] == []


def test_strangers_see_nothing_that_was_released():
    assert {each.follows_from for each in listed() if each.reader == "stranger"} == {"declared", "asked"}


def test_what_is_shown_unasked_has_nothing_of_what_anybody_asked():
    """The type does not say whose requests a field follows from."""
    unasked = [each for each in EVERYTHING if each.filtered]
    assert len(unasked) == 2
    assert {field.disclosure.name for each in unasked for field in each.fields()} == {"declared", "released"}


def test_metrics_and_spans_follow_from_nothing_of_the_records():
    assert {each.least for values in LOOSE.values() for each in values.values()} == {Reader.STRANGER}


def test_everything_with_types_is_in_the_list(tmp_path):
    """In a process of its own, which may import every module."""
    done = ran_program(Path(__file__).with_name("everything_with_types.py"), [], tmp_path, os.environ)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_every_struct_that_a_service_answers_with_has_types():
    asked = {schemas.AnswerOptions, schemas.RequestedOutput, schemas.InputTensor, schemas.InferRequest}
    structs = {each for each in vars(schemas).values() if isinstance(each, type) and issubclass(each, msgspec.Struct)}
    replies = {each for each in structs if not issubclass(each, tuple(asked)) and each is not msgspec.Struct}
    assert {each for each in replies if not issubclass(each, Disclosed)} == set()
    assert len(replies) > 20


def test_a_released_field_of_a_certificate_names_a_step_or_the_model():
    beside = {"model", "scores"}
    for kind in all_kinds().values():
        if isinstance(kind, PayOnceKind):
            names = {step.name for step in kind.certificate_type.STEPS}
            released = {field.disclosure.release for field in disclosed_fields(kind.certificate_type)} - {""}
            assert released <= names | beside
            assert {"counts", "quantiles"} & names <= released
    assert str(Released("counts")) == "released: counts"


def test_the_command_lists_every_field_with_its_type(run):
    printed = json.loads(run("audit", "fields", "--json").stdout)
    assert len(printed) == len([*listed()])
    assert printed[0].keys() == {field.name for field in fields(next(listed()))}
    alone = run("audit", "fields", "stranger").stdout
    assert "binding_key" not in alone
    assert "strong_convexity" in alone
