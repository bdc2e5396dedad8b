"""No call of the library takes longer the more receipts there are: whoever waits for the store waits a bounded time."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from dpserve.accounting.ledger import ApiKey, Ledger, key_digest
from dpserve.accounting.ledger import store as store_module
from dpserve.accounting.ledger.backups import backup, restore
from dpserve.accounting.ledger.recovery import reconcile
from dpserve.accounting.ledger.store import FunctionLibrary
from dpserve.accounting.ledger.verification import verify

from .conftest import asking, new_lineage, open_accounts, question, releases

pytestmark = pytest.mark.anyio

RECEIPTS = 800
SLICE = 10
"""In place of the library's 1,000, so that few receipts are many slices."""
STEPS_OF_A_SLICE, STEPS_OF_AN_ARGUMENT = 30, 12
"""Steps that a call may take for each entry of a slice, and for each of its arguments. A call that walked an
index would take 800."""

COUNTING = """
local steps, calls = 0, {}

local function stepped(reply)
  steps = steps + 1 + (type(reply) == 'table' and #reply or 0)
  return reply
end

local function stepped_call(...)
  return stepped(redis.call(...))
end

local function stepped_pcall(...)
  return stepped(redis.pcall(...))
end

local function size_of(value)
  local size = 1
  if type(value) == 'table' then
    for name, each in pairs(value) do
      size = size + size_of(each) + (name == 'count' and each or 0)
    end
  elseif type(value) == 'string' then
    size = size + math.floor(#value / 16) -- questions are digests behind each other
  end
  return size
end

local function note_call(name, keys, args)
  local ok, sent = pcall(cmsgpack.unpack, args[1] or '')
  calls[#calls + 1] = name .. ' ' .. steps .. ' ' .. #keys + (ok and size_of(sent) or #args)
end

local NAME = """

WATCHED = """
    callback = function(keys, args)
      steps = 0
      local ok, reply, line = attempt(run, keys, args)
      note_call(name, keys, args)
"""

REPORT = """
redis.register_function{function_name = NAME .. '_calls', callback = function()
  local noted = calls
  calls = {}
  return noted
end}
"""


def counting_library() -> FunctionLibrary:
    """Return the library with a count of the steps of each call: rounds of loops, commands, and what these reply."""
    code = store_module.our_library().source
    code, loops = re.subn(r"\b(do|repeat)(?= *(?:--.*)?\n)", r"\1 steps = steps + 1", code)
    code, commands = re.subn(r"redis\.(p?call)\(", r"stepped_\1(", code)
    assert loops > 50
    assert commands > 80
    replaced = {
        "\nlocal NAME = ": COUNTING,
        "local SLICE = 1000": f"local SLICE = {SLICE}",
        "\n    callback = function(keys, args)\n      local ok, reply, line = attempt(run, keys, args)\n": WATCHED,
    }
    for right, other in replaced.items():
        assert code.count(right) == 1
        code = code.replace(right, other)
    return FunctionLibrary(code + REPORT)


@dataclass(frozen=True)
class Call:
    """A call of the library: its function, the steps that it took, and the size of what it was sent."""

    function: str
    steps: int
    size: int

    @property
    def is_bounded(self) -> bool:
        return self.steps <= STEPS_OF_A_SLICE * SLICE + STEPS_OF_AN_ARGUMENT * self.size


def calls_at(url: str, library: FunctionLibrary) -> Iterator[Call]:
    """Yield the calls since the last time."""
    with redis.Redis.from_url(url, decode_responses=True, protocol=2) as store:
        for line in store.fcall(f"{library.name}_calls", 0):
            function, steps, size = line.split(" ")
            yield Call(function, int(steps), int(size))


async def use_every_function(ledger: Ledger, lineage: str, folder: Path) -> None:
    """Call each function of the library on a lineage with many receipts."""
    await open_accounts(ledger, lineage, releases(2 * RECEIPTS), ann=releases(RECEIPTS), bob=releases(RECEIPTS))
    await ledger.acting("owner").open_lineage(f"{lineage}-mistaken", releases(1), time=0.0)
    await ledger.acting("owner").forget_lineage(f"{lineage}-mistaken", time=0.0)
    await ledger.acting("owner").add_group(lineage, "team", releases(5), time=0.0)
    await ledger.acting("owner").set_group(lineage, "bob", "team")
    await ledger.acting("owner").set_budget(lineage, releases(3 * RECEIPTS))
    await ledger.acting("owner").settle_unit(lineage, "person")
    await ledger.acting("owner").add_key(lineage, "ann", ApiKey(key_digest(f"another of {lineage}")))
    for start in range(0, RECEIPTS, 100):
        await ledger.charge_batch([asking(lineage, "ann", f"{number}") for number in range(start, start + 100)])
    (receipt,) = (await ledger.charge(asking(lineage, "bob", "0", "new"))).receipts
    await ledger.quote(asking(lineage, "ann", "0"))
    await ledger.apply([asking(lineage, "ann", "0").ledger_request])
    lines = [line async for line in backup(ledger, [lineage])]
    await look(ledger, lineage)
    assert [one.number for one in await ledger.client_receipts(lineage, "bob", count=5)] == [receipt.number]
    await reconcile(ledger.acting("owner"), lineage, [])
    asked = [("ann", [question("0")]), ("bob", [question("1")]), ("nobody", [question("0")]), ("", [question("1")])]
    assert await ledger.paid_for(lineage, asked) == [True, False, False, True]
    await ledger.acting("owner").revoke(lineage, "bob")
    async with Ledger.open(folder / "restored") as restored:
        await restore(restored, lines)
        assert all(call.is_bounded for call in calls_at(f"unix://{restored.store.address}", store_module.our_library()))


async def look(ledger: Ledger, lineage: str) -> None:
    """Read as clients, services and the owner do."""
    assert (await verify(ledger, lineage)).findings == ()
    await ledger.api_keys.authenticate(lineage, key_digest(f"{lineage}/ann"))
    for after in (0, 1, RECEIPTS // 2, RECEIPTS - 1, RECEIPTS):
        for newest_first in (False, True):
            await ledger.client_receipts(lineage, "ann", after=after, count=5, newest_first=newest_first)
        await ledger.receipts(lineage, after=after, count=5)
    await ledger.acting("owner").note(lineage, "export", {})


async def test_no_call_takes_longer_the_more_receipts_there_are(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = counting_library()
    monkeypatch.setattr(store_module, "our_library", lambda: library)
    async with await Ledger.connect(store_url) as ledger:
        await use_every_function(ledger, new_lineage(), tmp_path)
    calls = list(calls_at(store_url, library))
    assert [call for call in calls if not call.is_bounded] == []
    registered = set(re.findall(r"register(?:_on_lineage)?\('(\w+)'", library.source))
    assert registered - {call.function for call in calls} == {"restore"}  # which was called on another store
