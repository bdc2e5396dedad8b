"""The number of answers from which a pay-once model is better, on every seed."""

import pytest

from dpserve.training.kinds.cases import Quality
from research.comparison.first_answers import COUNTS, first_of, span

pytestmark = pytest.mark.research


def quality(log_loss):
    return Quality(accuracy=0.5, log_loss=log_loss, calibration_error=0.0)


def head(*log_losses):
    return {str(count): None if each is None else quality(each) for count, each in zip(COUNTS, log_losses, strict=True)}


def test_the_number_is_that_from_which_every_seed_agrees():
    once = [{"dpsgd": quality(0.5), "class-sums": quality(0.9)}] * 2
    assert first_of([head(0.4, 0.6, 0.7, 0.8, 0.9), head(0.3, 0.4, 0.7, 0.8, 0.9)], once) == 5
    assert first_of([head(0.6, 0.6, 0.7, 0.8, None)] * 2, once) == 1


def test_no_number_is_one_where_the_head_is_better_for_the_most_answers():
    assert first_of([head(0.6, 0.6, 0.7, 0.8, 0.4)], [{"dpsgd": quality(0.5)}]) is None


def test_a_span_is_of_the_seeds_that_were_answered():
    assert span([quality(0.25), None, quality(0.5)]) == "0.500 to 0.500 / 0.250 to 0.500"
    assert span([None]) == "refused"
