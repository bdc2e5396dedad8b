"""Budgets by period: whatever the store's clock does, never more than the limit, and no period twice."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from accounting.acts import AddClient, AddGroup, SetBudget
from accounting.budgets import Budget, Period, Refill
from accounting.explanation import explain_account
from accounting.ledger import ActRefused, BudgetExhausted, Charge, Ledger, key_digest
from accounting.ledger.backups import backup, restore
from accounting.ledger.journal import read_journals
from accounting.ledger.recovery import reconcile
from accounting.ledger.store import FunctionLibrary, our_library
from accounting.ledger.verification import verify
from accounting.report import AccountState

from .conftest import (
    BINARY,
    COST,
    DURABLE,
    asking,
    faulty_library,
    new_lineage,
    open_accounts,
    releases,
    running_server,
)

PRICE = COST.picorho
CLOCK = "the time of day"
DAY = 86400
_PERIODS: tuple[Period, ...] = ("day", "week", "month")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("refills"), BINARY, **DURABLE) as address:
        yield address


@pytest.fixture
def clock(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator["redis.Redis[bytes]"]:
    """Our library, under a name of its own, whose time is what a key says."""
    ours = our_library()
    source = ours.source.replace("tonumber(redis.call('TIME')[1])", f"tonumber(redis.call('GET', '{CLOCK}'))")
    assert source != ours.source
    library = FunctionLibrary(source)
    monkeypatch.setattr("accounting.ledger.store.our_library", lambda: library)
    with redis.Redis.from_url(url, protocol=2) as client:
        yield client


def _begins(period: Period, seconds: int) -> date:
    """The first day of the calendar period that a time is in: the calendar's own, and not the library's arithmetic."""
    day = datetime.fromtimestamp(seconds, UTC).date()
    match period:
        case "day":
            return day
        case "week":
            return day - timedelta(days=day.weekday())
    return day.replace(day=1)


def _in_seconds(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


_LATEST = _in_seconds(date(2400, 3, 2))
_JUMPS = st.lists(
    st.tuples(
        st.one_of(
            st.integers(-400 * DAY, 400 * DAY),
            st.sampled_from([0, 1, -1, DAY, -DAY, 7 * DAY, 31 * DAY, 366 * DAY, 36525 * DAY]),
        ),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=12,
)


async def _ask_at_each_jump(
    ledger: Ledger,
    clock: "redis.Redis[bytes]",
    start: int,
    jumps: list[tuple[int, int]],
    budget: Budget,
    of: str,
) -> None:
    """After each jump of the store's clock a client asks for some new rows. The oracle knows the calendar.

    A period begins with the first charge in it, and only if it is later than all that began before.
    """
    lineage, refill = new_lineage(), budget.refill
    assert refill is not None
    most, limit = refill.amount // PRICE, budget.limit // PRICE
    budgets = dict.fromkeys(("client", "group", "lineage"), releases(99)) | {of: budget}
    clock.set(CLOCK, start)
    await ledger.open_lineage(lineage, budgets["lineage"], time=0.0)
    await ledger.add_group(lineage, "team", budgets["group"], time=0.0)
    await ledger.add_client(lineage, "ann", budgets["client"], key_digest(lineage), time=0.0, group="team")
    now, began, spent, before = start, date.min, 0, 0
    spent_in: dict[date, int] = {}
    for jump, rows in jumps:
        now = min(max(0, now + jump), _LATEST)
        clock.set(CLOCK, now)
        begins, base = began, before
        if _begins(refill.period, now) > began:
            begins, base = _begins(refill.period, now), spent
        allowed = min(limit, base + most) - spent
        asked = asking(lineage, "ann", *(str(number) for number in range(spent, spent + rows)))
        (got,) = await ledger.charge_batch([asked])
        if rows <= allowed:
            assert isinstance(got, Charge), got
            began, before, spent = begins, base, spent + rows
            spent_in[began] = spent_in.get(began, 0) + rows
        else:
            assert isinstance(got, BudgetExhausted)
            assert (got.scope, got.remaining) == (of, allowed * PRICE)
            assert got.refilled is None or got.refilled > begins
        client, (group, whole) = await ledger.payers(lineage, "ann")
        account = {"client": client, "group": group, "lineage": whole}[of]
        assert account.spent == spent * PRICE <= limit * PRICE
        left = allowed - rows if rows <= allowed else allowed
        assert account.remaining == left * PRICE
    assert all(each <= most for each in spent_in.values())
    assert (await verify(ledger, lineage)).findings == ()


def _try_clocks(url: str, clock: "redis.Redis[bytes]", examples: int) -> None:
    @settings(
        max_examples=examples,
        phases=[Phase.explicit, Phase.generate],
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        start=st.integers(0, _LATEST),
        jumps=_JUMPS,
        period=st.sampled_from(_PERIODS),
        refill=st.integers(1, 5),
        limit=st.integers(1, 12),
        of=st.sampled_from(["client", "group", "lineage"]),
    )
    @example(_in_seconds(date(2024, 2, 29)), [(0, 3), (DAY, 3), (-DAY, 3)], "month", 3, 9, "client")
    @example(_in_seconds(date(2000, 12, 31)), [(0, 2), (DAY, 2), (-366 * DAY, 2)], "week", 2, 9, "group")
    def clocks(start: int, jumps: list[tuple[int, int]], period: Period, refill: int, limit: int, of: str) -> None:
        budget = Budget(limit * PRICE, "any", releases(1).delta, Refill(refill * PRICE, period))
        runner.run(_ask_at_each_jump(ledger, clock, start, jumps, budget, of))

    with asyncio.Runner() as runner:
        clock.set(CLOCK, 0)
        ledger = runner.run(Ledger.connect(url))
        try:
            clocks()
        finally:
            runner.run(ledger.close())


def test_no_clock_refills_twice_or_beyond_the_limit(url: str, clock: "redis.Redis[bytes]") -> None:
    _try_clocks(url, clock, 20)


@pytest.mark.slow
def test_no_clock_refills_twice_or_beyond_the_limit_in_full(url: str, clock: "redis.Redis[bytes]") -> None:
    _try_clocks(url, clock, 400)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("if now > account.opened then", "if now ~= account.opened then"),
        ("math.min(account.limit, account.before + most)", "account.before + most"),
        ("(today + 3) % 7", "(today + 4) % 7"),
        ("fields[#fields + 1], fields[#fields + 2] = 'period', written_period(state)", ""),
    ],
    ids=["a clock that jumps back refills", "no limit for life", "weeks that begin on Sunday", "no period is kept"],
)
def test_a_refill_that_is_decided_wrongly_is_found_out(
    url: str, clock: "redis.Redis[bytes]", monkeypatch: pytest.MonkeyPatch, right: str, wrong: str
) -> None:
    library = faulty_library(right, wrong)
    monkeypatch.setattr("accounting.ledger.store.our_library", lambda: library)
    with pytest.raises((AssertionError, ExceptionGroup)):
        _try_clocks(url, clock, 60)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(day=st.dates(date(1970, 1, 1), date(2600, 1, 1)), period=st.sampled_from(_PERIODS))
def test_a_period_ends_where_the_next_one_begins(day: date, period: Period) -> None:
    began = _begins(period, _in_seconds(day))
    ends = Refill(1, period).ends((began - date(1970, 1, 1)).days)
    assert began <= day < ends == _begins(period, _in_seconds(ends))
    assert _begins(period, _in_seconds(ends - timedelta(days=1))) == began


@pytest.mark.anyio
async def test_a_refill_that_never_suffices_is_refused_as_one(url: str, clock: "redis.Redis[bytes]") -> None:
    """Promises no day for what costs more than any period has, and the next one for what it pays for."""
    lineage, delta = new_lineage(), releases(1).delta
    small = Budget(20 * PRICE, "any", delta, Refill(PRICE - 1, "month"))
    larger = Budget(20 * PRICE, "any", delta, Refill(PRICE, "month"))
    clock.set(CLOCK, _in_seconds(date(2026, 5, 13)))
    async with await Ledger.connect(url) as ledger:
        await open_accounts(ledger, lineage, releases(50), ann=small, bo=larger)
        await ledger.charge(asking(lineage, "bo", "1"))
        refused = {}
        for client, question in (("ann", "2"), ("bo", "3")):
            with pytest.raises(BudgetExhausted) as caught:
                await ledger.charge(asking(lineage, client, question))
            refused[client] = caught.value
    assert (refused["ann"].refilled, refused["bo"].refilled) == (None, date(2026, 6, 1))
    assert "never" in str(refused["ann"])
    assert f"at delta = {delta:g}" in str(refused["ann"])
    assert "never" not in str(refused["bo"])


@pytest.mark.anyio
async def test_an_account_that_can_buy_nothing_is_said_when_it_is_made(url: str) -> None:
    lineage, delta = new_lineage(), releases(1).delta
    rho = PRICE / 1e12
    async with await Ledger.connect(url) as ledger:
        await open_accounts(ledger, lineage, releases(50), ann=releases(20))
        acts = {
            "before anything was paid": AddClient(client="bo", rho=rho / 2, delta=delta),
            "enough": AddClient(client="bo", rho=rho, delta=delta),
            "too little": AddClient(client="bo", rho=rho / 2, delta=delta),
            "too slow": AddClient(client="bo", rho=2 * rho, delta=delta, refill=f"rho:{rho / 2}/month"),
            "a group's": AddGroup(group="team", rho=rho / 2, delta=delta),
            "changed": SetBudget(client="ann", rho=1.5 * rho, delta=delta),
        }
        warnings = {}
        for name, act in acts.items():
            warnings[name] = (await act.plan(ledger, lineage)).warning
            if name == "before anything was paid":
                await ledger.charge(asking(lineage, "ann", "1"))
    assert {name for name, warning in warnings.items() if "never" in warning} == {
        "too little",
        "too slow",
        "a group's",
        "changed",
    }


@pytest.mark.anyio
async def test_the_owner_sets_changes_and_ends_a_refill_and_no_period_is_begun_again(
    url: str, clock: "redis.Redis[bytes]"
) -> None:
    lineage, delta = new_lineage(), releases(1).delta

    def paced(refill: int, period: Period) -> Budget:
        return Budget(20 * PRICE, "any", delta, Refill(refill * PRICE, period))

    clock.set(CLOCK, _in_seconds(date(2026, 5, 13)))
    async with await Ledger.connect(url) as ledger:
        await open_accounts(ledger, lineage, releases(50), ann=paced(2, "month"))
        await ledger.charge(asking(lineage, "ann", "1", "2"))
        refused = asking(lineage, "ann", "3")
        with pytest.raises(BudgetExhausted, check=lambda error: error.refilled == date(2026, 6, 1)) as caught:
            await ledger.charge(refused)
        assert caught.value.refilled == date(2026, 6, 1)
        await ledger.set_budget(lineage, paced(3, "month"), client="ann")
        await ledger.charge(refused)
        await ledger.set_budget(lineage, releases(20), client="ann")  # at once, and no more
        await ledger.charge(asking(lineage, "ann", "4", "5", "6"))
        await ledger.set_budget(lineage, paced(3, "month"), client="ann")  # in whose present month 6 are spent
        with pytest.raises(BudgetExhausted):
            await ledger.charge(asking(lineage, "ann", "7"))
        clock.set(CLOCK, _in_seconds(date(2026, 6, 1)))
        assert (await ledger.client(lineage, "ann")).remaining == 3 * PRICE
        assert (await ledger.client(lineage, "ann")).budget == paced(3, "month")
        await ledger.charge(asking(lineage, "ann", "7", "8", "9"))
        account = await ledger.client(lineage, "ann")
        assert (account.remaining, account.refilled) == (0, date(2026, 7, 1))
        assert (await verify(ledger, lineage)).findings == ()
        with redis.Redis.from_url(url, protocol=2) as store:
            store.hset(f"dpserve:{{{lineage}}}:client:ann", "period", f"20605 {account.spent + 1}")
        assert "had never spent" in str((await verify(ledger, lineage)).findings)
        with pytest.raises(ActRefused):
            await ledger.add_client(lineage, "ann", paced(1, "day"), bytes(32), time=0.0)


@pytest.mark.anyio
async def test_a_period_that_a_restored_store_forgot_is_not_given_again(
    url: str, clock: "redis.Redis[bytes]", tmp_path: Path
) -> None:
    """Charges of this month and of the one before are put back, and count against this month."""
    lineage, may, june = new_lineage(), _in_seconds(date(2026, 5, 13)), _in_seconds(date(2026, 6, 13))
    paced = replace(releases(20), refill=Refill(2 * PRICE, "month"))
    clock.set(CLOCK, may)
    async with await Ledger.connect(url, journals=tmp_path) as service:
        await service.join(lineage)
        await open_accounts(service, lineage, releases(50), ann=paced)
        await service.charge(asking(lineage, "ann", "1"))
        lines = [line async for line in backup(service, [lineage])]
        await service.charge(asking(lineage, "ann", "2"))
        clock.set(CLOCK, june)
        await service.charge(asking(lineage, "ann", "3", "4"))
    for key in clock.keys(f"dpserve:{{{lineage}}}:*"):
        clock.delete(key)
    async with await Ledger.connect(url) as owner:
        await restore(owner, lines)
        await reconcile(owner, lineage, read_journals(tmp_path))
        ann = await owner.client(lineage, "ann")
        assert (ann.spent, ann.remaining, ann.refilled) == (4 * PRICE, 0, date(2026, 7, 1))
        assert (await verify(owner, lineage)).findings == ()


def test_a_refill_is_read_as_the_owner_writes_it() -> None:
    month = Refill.parse("epsilon:1@1e-6/month", "gaussian")
    assert month == Refill(Budget.from_epsilon_delta(1, 1e-6, "gaussian").limit, "month")
    assert Refill.parse("rho:0.01/week", "any") == Refill(10**10, "week")
    for text in ("epsilon:1/month", "rho:0.01/year", "rho:0/day", "rho:-1/day", "mu:1/day", "1/day", "rho:x/day", ""):
        with pytest.raises(ValueError, match=r"a refill is written epsilon:1@1e-6/month or rho:0.01/week"):
            Refill.parse(text, "any")


def test_an_account_by_period_says_what_the_periods_are_together() -> None:
    budget = Budget.from_epsilon_delta(4, 1e-6, "gaussian")
    each = Refill.parse("epsilon:1@1e-6/month", "gaussian")
    paced = Budget(budget.limit, "gaussian", 1e-6, each)
    words = explain_account(
        AccountState.after_releases({}, paced, left=each.amount, refilled=date(2026, 6, 1), group="risk"), price=None
    )
    assert words.refill is not None
    assert (words.refill.period, words.refill.next) == ("month", date(2026, 6, 1))
    assert words.limit.epsilon == pytest.approx(4, abs=1e-6)
    said = words.explanation.in_plain_words
    assert "One month alone would be epsilon 1; that is no promise for each of them" in said
    assert "together they are epsilon 4, as the whole account is" in said
    assert "Members of its group 'risk' who share what they learn are bounded together by the group's account" in said


def test_all_periods_together_are_bounded_by_the_highest_limit_that_was_in_force() -> None:
    """A limit that was lowered bounds nothing that was released under the one before."""
    former, budget = Budget.from_epsilon_delta(4, 1e-6, "gaussian"), Budget.from_epsilon_delta(1, 1e-6, "gaussian")
    paced = replace(budget, refill=Refill.parse("epsilon:0.5@1e-6/month", "gaussian"))
    words = explain_account(AccountState.after_releases({}, paced, left=1, highest_limit=former.limit), price=None)
    assert "together they are epsilon 4, as the whole account is" in words.explanation.in_plain_words
