"""API keys: whose one is now, asked of the store each time, and remembered so that a charge may check it again."""

from typing import TYPE_CHECKING, Any

from dpserve.accounting.ledger import wire
from dpserve.accounting.ledger.api_keys import KeyScope
from dpserve.accounting.ledger.errors import ClientRevoked, KeyExpired, LedgerRefusal, ScopeMissing, UnknownKey
from dpserve.accounting.ledger.reading import reading
from dpserve.accounting.ledger.store import binary
from dpserve.accounting.ledger.values import ClientAccount
from dpserve.accounting.ledger.wire import LineageKeys

if TYPE_CHECKING:
    from dpserve.accounting.ledger.accounts import Accounts

_MOST_NAMED = 10_000
"""Number of API keys whose clients are remembered, so that one call can read both."""


class ApiKeys:
    """The API keys of a ledger's clients."""

    def __init__(self, accounts: "Accounts") -> None:
        """Ask by these accounts."""
        self._accounts = accounts
        self.clients: dict[tuple[str, bytes], str] = {}
        """The client that had an API key when `authenticate` last found it, by lineage and the key's digest.

        It says to whom a request is to be charged whose `key_digest` is then checked with the charge.
        """

    async def authenticate(self, lineage: str, digest: bytes, scope: KeyScope = "predict") -> ClientAccount:
        """Return the account of the client whose API key has this digest and is good for `scope` now.

        Raises UnknownKey, KeyExpired, ScopeMissing and ClientRevoked.
        """
        keys, name = LineageKeys(lineage), self.clients.get((lineage, digest))
        while True:  # who has this key now is asked, whoever had it before
            named: dict[str, Any] = {"digest": binary(digest), "scope": scope}
            own = []
            if name is not None:
                expected_keys = keys.client(name)
                own, named["id"] = [expected_keys.account], expected_keys.id
            status, *reply = await self._accounts.call(
                lineage, "find_client", [keys.api_keys, *own], named, durably=False
            )
            if not status:
                self.forget(lineage, digest)
                raise UnknownKey
            with reading(lineage):
                expected, name = name, status.decode()
            if name == expected:
                break
        refused, fields = reply
        account = await self._accounts.account_of(keys.client(name), wire.fields_of(fields), listed=True)
        error = ClientRevoked(name) if account.revoked else _refused_key(refused, scope)
        if error is None:
            if len(self.clients) >= _MOST_NAMED:
                self.clients.clear()
            self.clients[lineage, digest] = name
            return account
        if not isinstance(error, ScopeMissing):
            self.forget(lineage, digest)
        raise error

    def forget(self, lineage: str, digest: bytes) -> None:
        """Forget whose API key this was: it is refused now."""
        self.clients.pop((lineage, digest), None)


def _refused_key(word: bytes, scope: KeyScope) -> LedgerRefusal | None:
    match word:
        case b"":
            return None
        case b"key-expired":
            return KeyExpired()
        case b"key-scope":
            return ScopeMissing(scope)
    return UnknownKey()
