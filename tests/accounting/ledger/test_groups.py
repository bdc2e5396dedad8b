"""Groups: an account between the clients of a team and their lineage, which pays once for what its members ask."""

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from dpserve.accounting.ledger import (
    ActRefused,
    BudgetExhausted,
    Charge,
    Ledger,
    LedgerDamaged,
    UnknownGroup,
    key_digest,
)
from dpserve.accounting.ledger.backups import backup, restore
from dpserve.accounting.ledger.recovery import DeclaredLoss, reconcile
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.ledger.wire import LineageKeys

from .conftest import COST, asking, dump, new_lineage, read_journals, releases

pytestmark = pytest.mark.anyio


async def _open(ledger: Ledger, lineage: str, whole: int = 99, team: int = 99, each: int = 99) -> None:
    """Ann and bob belong to the team; cy to another; eve to none."""
    await ledger.acting("owner").open_lineage(lineage, releases(whole), time=0.0)
    for group, amount in (("team", team), ("others", 99)):
        await ledger.acting("owner").add_group(lineage, group, releases(amount), time=0.0)
    for client, group in (("ann", "team"), ("bob", "team"), ("cy", "others"), ("eve", "")):
        digest = key_digest(f"{lineage}/{client}")
        await ledger.acting("owner").add_client(lineage, client, releases(each), digest, time=0.0, group=group)


async def _spent(ledger: Ledger, lineage: str) -> tuple[int, int, int]:
    """Return the numbers of releases that the team, the others and the lineage paid for."""
    others, team = await ledger.groups(lineage)
    return team.releases, others.releases, (await ledger.lineage(lineage)).releases


async def test_any_account_of_the_chain_may_refuse_and_says_whose_it_is(ledger: Ledger, lineage: str) -> None:
    await _open(ledger, lineage, whole=7, team=4, each=3)
    with pytest.raises(BudgetExhausted) as by_client:
        await ledger.charge(asking(lineage, "ann", "1", "2", "3", "4"))
    await ledger.charge(asking(lineage, "ann", "1", "2", "3"))
    before = await _spent(ledger, lineage)
    with pytest.raises(BudgetExhausted) as by_group:
        await ledger.charge(asking(lineage, "bob", "4", "5"))
    assert await _spent(ledger, lineage) == before == (3, 0, 3)
    await ledger.charge(asking(lineage, "eve", "6", "7", "8"))
    with pytest.raises(BudgetExhausted) as by_lineage:
        await ledger.charge(asking(lineage, "cy", "9", "10"))
    assert [caught.value.scope for caught in (by_client, by_group, by_lineage)] == ["client", "group", "lineage"]
    assert "picorho" not in str(by_group.value)
    assert (await ledger.quote(asking(lineage, "bob", "4", "5"))).refusal is not None


async def test_a_groups_refusal_does_not_depend_on_whether_another_member_asked(ledger: Ledger) -> None:
    """As a lineage's: by what is new to the client alone. Two groups that spent as much on other rows refuse alike."""
    said = []
    for row in ("1", "9"):
        lineage = new_lineage()
        await _open(ledger, lineage, team=1)
        await ledger.charge(asking(lineage, "ann", row))
        (refused,) = await ledger.charge_batch([asking(lineage, "bob", "1")])
        quote = await ledger.quote(asking(lineage, "bob", "1"))
        said.append((type(refused), str(refused), quote.total, quote.free, str(quote.refusal)))
    assert said[0] == said[1]
    assert said[0][0] is BudgetExhausted


async def test_a_client_joins_a_group_before_it_asks_and_stays_there(ledger: Ledger, lineage: str) -> None:
    await _open(ledger, lineage)
    await ledger.acting("owner").set_group(lineage, "eve", "team")
    await ledger.charge(asking(lineage, "eve", "1"))  # whose group this service knew otherwise
    assert await _spent(ledger, lineage) == (1, 0, 1)
    for group in ("others", ""):
        with pytest.raises(ActRefused, check=lambda error: error.reason == "has-asked"):
            await ledger.acting("owner").set_group(lineage, "eve", group)
    with pytest.raises(UnknownGroup):
        await ledger.acting("owner").set_group(lineage, "ann", "nobody's")
    with pytest.raises(UnknownGroup):
        await ledger.acting("owner").add_client(
            lineage, "flo", releases(1), key_digest("flo"), time=0.0, group="nobody's"
        )
    await ledger.acting("owner").set_group(lineage, "ann", "others")
    await ledger.charge(asking(lineage, "ann", "2"))
    assert await _spent(ledger, lineage) == (1, 1, 2)
    with pytest.raises(ActRefused, check=lambda error: error.reason == "exists"):
        await ledger.acting("owner").add_group(lineage, "team", releases(1), time=0.0)
    assert (await verify(ledger, lineage)).findings == ()


async def test_a_client_and_a_group_of_one_name_are_two_accounts(ledger: Ledger, lineage: str) -> None:
    await _open(ledger, lineage)
    await ledger.acting("owner").add_group(lineage, "ann", releases(5), time=0.0)
    await ledger.acting("owner").add_client(
        lineage, "team", releases(5), key_digest(f"{lineage}/team"), time=0.0, group="ann"
    )
    await ledger.charge(asking(lineage, "team", "1"))
    await ledger.charge(asking(lineage, "ann", "2"))
    assert (await ledger.group(lineage, "ann")).releases == (await ledger.client(lineage, "ann")).releases == 1
    assert (await verify(ledger, lineage)).findings == ()


Damage = Callable[["redis.Redis[bytes]", LineageKeys], object]
FOUND: dict[str, tuple[Damage, str]] = {
    "who paid first": (
        lambda store, keys: store.hset(keys.questions, store.hkeys(keys.questions)[0], "3 2"),
        "the questions that the lineage has paid for are not those of its receipts",
    ),
    "a client in another group": (
        lambda store, keys: store.hset(keys.client("ann").account, "group", "others"),
        "client ann belongs to another group than its receipts or the acts say",
    ),
    "a group that is lost": (
        lambda store, keys: store.delete(keys.group("team").account),
        "the account of team is lost",
    ),
    "a name that nobody gave": (
        lambda store, keys: store.hset(keys.client("eve").account, "display", "Eve"),
        "client eve has another display name than it was given last",
    ),
}


@pytest.mark.parametrize("what", FOUND)
async def test_what_was_altered_of_a_group_is_found(ledger: Ledger, store_url: str, what: str) -> None:
    lineage = new_lineage()
    await _open(ledger, lineage)
    for client, row in (("cy", "1"), ("ann", "1"), ("bob", "2")):
        await ledger.charge(asking(lineage, client, row))
    assert (await verify(ledger, lineage)).findings == ()
    damage, finding = FOUND[what]
    with redis.Redis.from_url(store_url, protocol=2) as store:
        damage(store, LineageKeys(lineage))
    found = (await verify(ledger, lineage)).findings
    assert any(one.startswith(finding) for one in found), found


async def test_a_group_whose_account_is_gone_lets_none_of_its_members_ask(ledger: Ledger, store_url: str) -> None:
    lineage = new_lineage()
    await _open(ledger, lineage)
    await ledger.charge(asking(lineage, "ann", "1"))
    with redis.Redis.from_url(store_url, protocol=2) as store:
        store.delete(LineageKeys(lineage).group("team").account)
    before = dump(store_url, lineage)
    decisions = await ledger.charge_batch([asking(lineage, "ann", "1"), asking(lineage, "bob", "2")])
    assert [type(one) for one in decisions] == [LedgerDamaged] * 2
    assert dump(store_url, lineage) == before
    with pytest.raises(LedgerDamaged):
        await ledger.acting("owner").add_group(lineage, "team", releases(9), time=0.0)
    assert isinstance((await ledger.charge_batch([asking(lineage, "eve", "2")]))[0], Charge)


async def test_groups_are_restored_and_what_they_paid_for_since_is_put_back(tmp_path: Path) -> None:
    """Among it what a client paid who joined a group after the backup, and one of a group that the backup lacks."""
    journals = tmp_path / "journals"
    async with Ledger.open(tmp_path / "first", journals=journals) as ledger:
        await ledger.join("lineage")
        await _open(ledger, "lineage")
        for client, row in (("ann", "1"), ("cy", "1"), ("bob", "2")):
            await ledger.charge(asking("lineage", client, row))
        lines = [line async for line in backup(ledger)]
        await ledger.acting("owner").set_group("lineage", "eve", "others")
        await ledger.acting("owner").add_group("lineage", "late", releases(9), time=0.0)
        await ledger.acting("owner").add_client(
            "lineage", "flo", releases(9), key_digest("flo"), time=0.0, group="late"
        )
        for client, row in (("bob", "1"), ("eve", "2"), ("flo", "2"), ("ann", "3")):
            await ledger.charge(asking("lineage", client, row))
        spent = {one.group: one.spent for one in await ledger.groups("lineage")}
        whole = (await ledger.lineage("lineage")).spent
    async with Ledger.open(tmp_path / "second") as ledger:
        await restore(ledger, lines)
        assert (await verify(ledger, "lineage")).findings == ()
        assert (await reconcile(ledger.acting("owner"), "lineage", read_journals(journals))).put_back == 4
        assert {one.group: one.spent for one in await ledger.groups("lineage")} == spent
        assert (await ledger.lineage("lineage")).spent == whole
        assert (await ledger.client("lineage", "eve")).group == "others"
        assert (await ledger.client("lineage", "flo")).revoked
        assert (await ledger.group("lineage", "late")).budget.limit == 0
        assert (await verify(ledger, "lineage", read_journals(journals))).findings == ()
        again = [line async for line in backup(ledger)]
    async with Ledger.open(tmp_path / "third") as ledger:
        await restore(ledger, again)
        assert (await verify(ledger, "lineage", read_journals(journals))).findings == ()


@pytest.mark.parametrize("asked", [True, False])
async def test_a_loss_of_a_member_is_charged_to_its_group(ledger: Ledger, lineage: str, asked: bool) -> None:
    await _open(ledger, lineage)
    if asked:
        await ledger.charge(asking(lineage, "ann", "1"))
    await reconcile(ledger.acting("owner"), lineage, [], DeclaredLoss(3, COST, "ann"))
    assert (await ledger.client(lineage, "ann")).group == "team"
    assert await _spent(ledger, lineage) == (3 + asked, 0, 3 + asked)
    assert (await verify(ledger, lineage)).findings == ()


async def test_a_loss_of_a_member_that_the_backup_lacks_is_charged_to_its_group(tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    async with Ledger.open(tmp_path / "first", journals=journals) as ledger:
        await ledger.join("lineage")
        await _open(ledger, "lineage")
        lines = [line async for line in backup(ledger)]
        await ledger.acting("owner").add_client(
            "lineage", "flo", releases(9), key_digest("flo"), time=0.0, group="others"
        )
        await ledger.charge(asking("lineage", "flo", "1"))
    async with Ledger.open(tmp_path / "second") as ledger:
        await restore(ledger, lines)
        done = await reconcile(ledger.acting("owner"), "lineage", read_journals(journals), DeclaredLoss(2, COST, "flo"))
        assert (done.put_back, done.declared) == (1, 2)
        assert await _spent(ledger, "lineage") == (0, 3, 3)
        assert (await verify(ledger, "lineage", read_journals(journals))).findings == ()
