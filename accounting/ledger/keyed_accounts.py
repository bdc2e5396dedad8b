"""What the owner does to a client's API keys. Each act is written to the lineage's acts, the key's digest cut short."""

from collections.abc import Sequence
from typing import Literal

from accounting.ledger.accounts import Accounts
from accounting.ledger.api_keys import ApiKey
from accounting.ledger.errors import ClientRevoked, KeyInUse, TooManyKeys, UnknownClient, UnknownKey
from accounting.ledger.wire import Argument, LineageKeys

_Ending = Literal["all", "none"] | bytes


class KeyedAccounts(Accounts):
    """Accounts whose clients' API keys can be changed."""

    async def rotate_key(
        self, lineage: str, client: str, key: ApiKey | bytes, *, replaced: bytes | None = None, overlap: int = 0
    ) -> None:
        """Give a client another API key; the former ones are unknown from now on, or after `overlap` seconds.

        key: or the `key_digest` of one that is good for all and for ever. replaced: the digest of the one key that
        ends, if not all of them do. Raises UnknownClient, ClientRevoked, UnknownKey if `replaced` is none of the
        client's, and KeyInUse if the new key is known already.
        """
        new = key if isinstance(key, ApiKey) else ApiKey(key)
        await self._change_keys(lineage, client, "rotate-key", new, "all" if replaced is None else replaced, overlap)

    async def add_key(self, lineage: str, client: str, key: ApiKey) -> None:
        """Give a client a further API key. Raises UnknownClient, ClientRevoked, KeyInUse and TooManyKeys."""
        await self._change_keys(lineage, client, "add-key", key, "none", 0)

    async def remove_key(self, lineage: str, client: str, digest: bytes) -> None:
        """Take one API key away from a client, at once. Raises UnknownClient, ClientRevoked and UnknownKey."""
        await self._change_keys(lineage, client, "remove-key", None, digest, 0)

    async def _change_keys(
        self, lineage: str, client: str, act: str, new: ApiKey | None, ending: _Ending, seconds: int
    ) -> None:
        keys = LineageKeys(lineage)
        named: Sequence[Argument] = ("", "", "") if new is None else (new.digest, *new.terms)
        (status,) = await self.call(
            lineage,
            "change_keys",
            [keys.account, keys.acts, keys.api_keys, keys.client(client).account],
            [client, act, *named, ending, seconds],
            durably=True,
        )
        match status:
            case b"unknown-client":
                raise UnknownClient(client)
            case b"revoked":
                raise ClientRevoked(client)
            case b"key-in-use":
                raise KeyInUse
            case b"unknown-key":
                raise UnknownKey
            case b"too-many-keys":
                raise TooManyKeys(client)
