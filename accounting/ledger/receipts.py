"""Receipts and acts: their fields, the hashes that chain them, and how the store, the journal and a backup write them.

`Receipt` and `Act` are the one definition of what the ledger writes down. The journal and a backup hold their JSON. An
entry of the store's streams has the fields of the same names, except those that its id, its key or its place say; what
many receipts have in common (`Terms`) is there as a number. A field of a type in `_READERS` is read and written
without further words: add it here, fill it in `write_receipts` (charge.lua) and in `wire.read_charge`, and name it in
`Receipt.hash` if its client may know it, or else in `Receipt.link_values`.

Each service has a chain of its own, so that services which charge one lineage at the same time do not wait for each
other. A link is the hash of the link before it and of all receipts of one call, in order; the first receipt of a call
carries the link of the calls before. What a call is charged is decided inside the store, so its receipts are linked by
the service's next call; until then they stand in the service's journal.

Promises: whoever holds a link of a chain holds all of it up to there. A receipt that was altered, dropped, moved or
slipped in changes a later link, unless SHA-256 has a second preimage. The newest call of each service is covered by its
journal alone, and by the balances. Acts of the owner form one chain, whose newest hash the account holds.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct

from dpserve.accounting.currency import RHO, Currency
from dpserve.accounting.losses import Cost

QUESTION = 16
"""Bytes of a question's digest."""

BLOCK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""The form of a block's name."""

MOST_BLOCKS = 1_000
"""Largest number of blocks that one model may be trained on."""

GENESIS = bytes(32)
"""The hash that the first act of a lineage follows."""

_LONGEST_TEXT = 255
_MICROSECONDS = 1_000_000

EntryFields = list[str | bytes | int]


def digest(purpose: str, *parts: Any) -> bytes:
    """Return the SHA-256 of the parts, for one purpose: 32 bytes. Their JSON says where each of them ends."""
    return hashlib.sha256(msgspec.json.encode((purpose, parts))).digest()


def checked_text(text: str, what: str) -> None:
    """Raise ValueError unless `text` is neither empty nor too long for the store."""
    if not 0 < len(text.encode()) <= _LONGEST_TEXT:
        raise ValueError(f"{what} must have 1 to {_LONGEST_TEXT} bytes")


def checked_time(time: float) -> None:
    """Raise ValueError unless `time` is finite and not beyond what the store counts in microseconds."""
    if not abs(time) < 2**53 / _MICROSECONDS * 1000:
        raise ValueError(f"a request's time must be finite, not {time}")


def microseconds(time: float) -> int:
    """Return seconds as whole microseconds."""
    return round(time * _MICROSECONDS)


class Terms(Struct, frozen=True, array_like=True, dict=True):
    """The terms at which a line of a request is charged, as its receipt has them. Make them with `charge_terms`.

    `cost_text` is the cost of one release, and `price` what it cost when it was charged, in picorho; what it costs an
    account of pure epsilon follows from the cost. `times` is how
    many releases each question stands for: 1, except for a loss that the owner declares. `release` is empty except
    for a pay-once model: what its question was derived from, beside the model and the cost. `blocks` are those of
    the lineage that pay, in order and each once: the blocks whose records the model was trained on; none for the one
    without a name (`paying`).
    """

    model: str
    mechanism: str
    cost_text: str
    price: int
    times: int
    release: bytes
    blocks: tuple[str, ...]

    @cached_property
    def cost(self) -> Cost:
        """The cost of one release. Raises ValueError for text that states none."""
        return Cost.parse(self.cost_text)

    @cached_property
    def encoding(self) -> bytes:
        """The terms as the store keeps them, and as hashes cover them."""
        return msgspec.json.encode(self)

    @cached_property
    def arguments(self) -> msgspec.Raw:
        """The terms as the store's functions take them, packed."""
        named = {
            "packed": self.encoding.decode(),
            "cost": self.cost_text,
            "kind": self.cost.kind,
            "price": self.price,
            "pure": self.cost.picoepsilon,
            "times": self.times,
            "coins": self.cost.coins,
            "is_model": bool(self.release),
            "blocks": paying(self.blocks),
        }
        return msgspec.Raw(msgspec.msgpack.encode(named))


UNNAMED = ""
"""The block of a lineage's records that lie in none with a name."""


def paying(blocks: Sequence[str]) -> Sequence[str]:
    """Return the blocks that pay where these are named: of none, that without a name."""
    return blocks or (UNNAMED,)


@lru_cache(maxsize=4096)
def checked_blocks(blocks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of blocks. Raises ValueError for one that is no name, or too many, or twice, or out of order."""
    for block in blocks:
        if not BLOCK.fullmatch(block):
            raise ValueError(
                "a block's name has 1 to 64 letters, digits, dots, dashes and underscores and starts with a letter or "
                f"a digit; {block!r} does not"
            )
    if len(blocks) > MOST_BLOCKS:
        raise ValueError(f"a model has at most {MOST_BLOCKS:,} blocks, not {len(blocks):,}")
    if list(blocks) != sorted(set(blocks)):
        raise ValueError("blocks are named in order, and each once")
    return blocks


@lru_cache(maxsize=4096)
def charge_terms(
    model: str, mechanism: str, cost: Cost, times: int = 1, release: bytes = b"", blocks: tuple[str, ...] = ()
) -> Terms:
    """Return terms, checked once. Raises ValueError for what the store could not hold.

    So it does for a cost that does not read back: it would stand in a tally that nobody can read any more (a parameter
    that is a NumPy number prints so).
    """
    checked_text(model, "a model's id")
    checked_text(mechanism, "a mechanism's name")
    terms = Terms(model, mechanism, str(cost), cost.picorho, times, release, checked_blocks(blocks))
    if terms.cost != cost:
        raise ValueError(f"the cost {terms.cost_text!r} does not read back as itself")
    return terms


@lru_cache(maxsize=4096)
def read_terms(packed: bytes) -> Terms:
    """Read what `Terms.encoding` wrote. Raises ValueError."""
    terms = msgspec.json.decode(packed, type=Terms)
    _ = terms.cost
    return terms


class Receipt(Struct, frozen=True, kw_only=True, dict=True):
    """The ledger's entry for one charged line of a request.

    `number` counts the receipts of the client from 1; `sequence` those of the lineage. That, `group_questions`,
    `lineage_questions`, `link` and what derives from them is not for the client, whom it would tell what others ask.
    `client` is empty, and `number` 0, where the lineage alone was charged, for a loss that the owner declared or for
    what the owner holds; `group` is empty where the client belongs to none. `questions` are those new to the client,
    `group_questions` and `lineage_questions` how many of them were new to its group and to the lineage, too.
    `microseconds` is the request's time since the epoch. `service` wrote it; `link` is the service's chain before the
    call, or empty for a further receipt of the same call.
    """

    lineage: str
    client: str
    sequence: int
    number: int
    terms: Terms
    microseconds: int
    questions: tuple[bytes, ...]
    lineage_questions: int
    group: str = ""
    group_questions: int = 0
    service: str = ""
    link: bytes = b""

    @property
    def model(self) -> str:
        """The model's id."""
        return self.terms.model

    @property
    def mechanism(self) -> str:
        """The mechanism's name."""
        return self.terms.mechanism

    @property
    def cost(self) -> Cost:
        """The cost of one release."""
        return self.terms.cost

    @property
    def price(self) -> int:
        """The price of one release, in picorho."""
        return self.terms.price

    def price_in(self, currency: Currency) -> int:
        """Return what one release was charged to an account of that currency. Raises ValueError if it has no price."""
        price = self.price if currency is RHO else currency.price(self.cost)
        if price is None:
            raise ValueError(f"{str(self.cost)!r} has no price in {currency.name}")
        return price

    def total_in(self, currency: Currency, releases: int) -> int:
        """Return the charge to an account of that currency, in 1e-12 of it. Raises as `price_in` does.

        releases: how many the account paid for: `releases`, `group_releases` or `lineage_releases`.
        """
        return self.price_in(currency) * releases if releases else 0

    @property
    def time(self) -> float:
        """When the request came, in seconds since the epoch."""
        return self.microseconds / _MICROSECONDS

    @property
    def releases(self) -> int:
        """Number of releases charged to the client's account, or to the lineage's where it alone pays."""
        return self.terms.times * len(self.questions)

    @property
    def group_releases(self) -> int:
        """Number of releases charged to the account of the client's group."""
        return self.terms.times * self.group_questions

    @property
    def lineage_releases(self) -> int:
        """Number of releases charged to the lineage's account."""
        return self.terms.times * self.lineage_questions

    @property
    def flaw(self) -> str:
        """A sentence that says why no such charge can have been made; empty for a possible receipt."""
        terms = self.terms
        if terms.price != terms.cost.picorho or not self.questions:
            return f"charges {self.total_in(RHO, self.releases)} picorho, which its cost does not"
        asked = (model_question(terms.release, terms.model, terms.cost_text),) if terms.release else self.questions
        if self.questions != asked or (terms.release and terms.times != 1):
            return "names a model that it does not pay for"
        return ""

    @cached_property
    def hash(self) -> bytes:
        """The SHA-256 of what it says to its client: 32 bytes.

        What a client must not hear, how many receipts others have and who else asked, is no part of it, because a hash
        of so few possible values would tell. It goes into the link: `linked`.
        """
        terms = msgspec.Raw(self.terms.encoding)
        fields = (self.lineage, self.client, terms, self.number, self.microseconds, self.questions)
        return digest("dpserve receipt", *fields)

    @property
    def link_values(self) -> tuple[bytes, int, str, int, int]:
        """The values of this receipt that the link after its call covers."""
        return self.hash, self.sequence, self.group, self.group_questions, self.lineage_questions


class Act(Struct, frozen=True, kw_only=True):
    """One act of the owner, as written in the store.

    `kind` is open, add-client, add-group, add-block, budget, rename, group, revoke, add-key, rotate-key, remove-key,
    unit, forget, export or reconcile; `subject` whom it
    is about, as `account_subject` names it; `detail` a JSON object of what was said of it; `by` who did it and `why`,
    in their own words; `time` the store's own, in seconds since the epoch, as text. `hash` covers all of it and the
    hash of the act before.
    """

    sequence: int
    kind: str
    subject: str
    detail: str
    by: str
    why: str
    time: str
    hash: bytes

    @property
    def details(self) -> dict[str, Any]:
        """The detail, read. Raises ValueError."""
        return msgspec.json.decode(self.detail, type=dict[str, Any])

    def follows(self, previous: bytes) -> bool:
        """Return whether the hash is that of these contents after an act with the hash `previous`."""
        words = (self.kind, self.subject, self.detail, self.by, self.why, self.time)
        return self.hash == act_hash(previous, self.sequence, *words)


def account_subject(scope: str, name: str = "") -> str:
    """Return how an act names whom it is about: `client:NAME`, and so of groups, blocks and models; or `lineage`."""
    return f"{scope}:{name}" if name else scope


# Hashes


def first_link(lineage: str, service: str) -> bytes:
    """Return what stands before the first receipt of a service: 32 bytes that are its own."""
    return digest("dpserve service", service, lineage)


def next_link(link: bytes, call: Sequence[Receipt]) -> bytes:
    """Return the link after the receipts of a call: 32 bytes; the same link if there are none."""
    return digest("dpserve link", link, list(map(attrgetter("link_values"), call))) if call else link


def link_after(link: bytes, receipts: Sequence[Receipt]) -> bytes:
    """Return the link after the receipts of one call or more of a service."""
    call: list[Receipt] = []
    for receipt in receipts:
        if receipt.link and call:
            link, call = next_link(link, call), []
        call.append(receipt)
    return next_link(link, call)


def model_question(release: bytes, model: str, cost: str) -> bytes:
    """Return the question of a pay-once model: 16 bytes, over its release (`release_digest`) and what it costs.

    No other cost has the question of a model, unless SHA-256, cut to 16 bytes, has a second preimage; so whoever reads
    a receipt can tell whether it paid for its model.
    """
    return digest("dpserve model", release, model, cost)[:QUESTION]


def release_digest(model: str, drawn: bytes, blocks: tuple[str, ...] = ()) -> bytes:
    """Return the digest of a release: 16 bytes, over the model's id, what was drawn, and blocks.

    `drawn`: 32 bytes that are a release's alone and say nothing about it (`ReleaseRequest`). blocks: those that pay, so
    that what one block has paid for is no other's.
    """
    return digest("dpserve release", model, drawn, *blocks)[:QUESTION]


def act_hash(previous: bytes, sequence: int, *words: str) -> bytes:
    """Return an act's hash: 32 bytes, over the hash before it, its number and its words, in the order of `Act`."""
    return digest("dpserve act", previous, sequence, *words)


# Entries of the store's streams


def _split_questions(packed: bytes) -> tuple[bytes, ...]:
    if len(packed) == QUESTION:
        return (packed,)
    if len(packed) % QUESTION:
        raise ValueError("a receipt's questions are cut off")
    return tuple(packed[at : at + QUESTION] for at in range(0, len(packed), QUESTION))


_READERS: dict[Any, Callable[[bytes], Any]] = {
    int: int,
    str: bytes.decode,
    bytes: bytes,
    tuple[bytes, ...]: _split_questions,
}

Numbers = Mapping[str, Mapping[Any, Any]]
"""For each field that an entry has as a number (terms, client, group, service), its values by number, or the other way.

The lineage's hashes of terms, clients, groups and services have the numbers."""

_NUMBERED: Mapping[type[Receipt] | type[Act], Sequence[str]] = {
    Receipt: ("terms", "client", "group", "service"),
    Act: (),
}
_FIELDS = {kind: {field.name: field.type for field in msgspec.structs.fields(kind)} for kind in (Receipt, Act)}


@lru_cache(maxsize=64)
def _layout(
    kind: type[Receipt] | type[Act], names: tuple[bytes, ...]
) -> list[tuple[str, Callable[[bytes], Any] | None]]:
    """Return the names of an entry's fields, in its order, and how to read each; None for one that is a number."""
    fields = [name.decode() for name in names]
    return [(name, None if name in _NUMBERED[kind] else _READERS[_FIELDS[kind][name]]) for name in fields]


def _read_fields(kind: type[Receipt] | type[Act], words: Sequence[bytes], numbers: Numbers) -> dict[str, Any]:
    return {
        name: numbers[name][value] if read is None else read(value)
        for (name, read), value in zip(_layout(kind, tuple(words[::2])), words[1::2], strict=True)
    }


def _write(entry: Receipt | Act, names: Sequence[str], numbers: Numbers) -> EntryFields:
    words: EntryFields = []
    for name in names:
        value = getattr(entry, name)
        if name in numbers:
            value = numbers[name][value]
        words += (name, b"".join(value) if isinstance(value, tuple) else value)
    return words


def read_receipt(lineage: str, entry: Sequence[Any], numbers: Numbers) -> Receipt:
    """Read one entry of the stream of receipts. Raises ValueError, KeyError or TypeError."""
    sequence, number = map(int, entry[0].split(b"-"))
    return Receipt(lineage=lineage, sequence=sequence, number=number, **_read_fields(Receipt, entry[1], numbers))


def entry_of_receipt(receipt: Receipt, numbers: Numbers) -> tuple[str, EntryFields]:
    """Return a receipt's id in the stream, and its fields and values as `write_receipts` (charge.lua) writes them."""
    names = [name for name in _FIELDS[Receipt] if name not in ("lineage", "sequence", "number")]
    return f"{receipt.sequence}-{receipt.number}", _write(receipt, names, numbers)


def read_act(entry: Sequence[Any]) -> Act:
    """Read one entry of a stream of acts. Raises ValueError, KeyError or TypeError."""
    return Act(sequence=int(entry[0].split(b"-")[0]), **_read_fields(Act, entry[1], {}))


def entry_of_act(act: Act) -> tuple[str, EntryFields]:
    """Return an act's id in the stream, and its fields and values as `write_act` (owner.lua) writes them."""
    return f"{act.sequence}-0", _write(act, [name for name in _FIELDS[Act] if name != "sequence"], {})


def pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Return fields with their values, as the store replies them one after the other."""
    return zip(flat[::2], flat[1::2], strict=True)
