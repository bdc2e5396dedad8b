"""Figures that are kept, until all of them are forgotten."""

from dpserve.accounting.remembered import forget_all, remembered


def test_a_result_is_kept_until_all_are_forgotten():
    computed = []

    @remembered(2)
    def figure(amount):
        computed.append(amount)
        return amount + 1

    assert [figure(1), figure(1)] == [2, 2]
    forget_all()
    assert figure(1) == 2
    assert computed == [1, 1]
