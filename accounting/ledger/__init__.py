"""The ledger: budgets that cannot be overspent, and receipts for every question that was paid for."""

# ruff: noqa: F401
# mypy: implicit-reexport

from accounting.ledger.api_keys import SCOPES, ApiKey, KeyScope, checked_scopes, expiry
from accounting.ledger.embedded import EmbeddedStore
from accounting.ledger.errors import (
    ActRefused,
    BlocksNotNamed,
    BudgetExhausted,
    ChargedWithoutBlocks,
    ClientRevoked,
    CoinsExhausted,
    EmbeddedStoreFailed,
    IdempotencyConflict,
    KeyExpired,
    LedgerBusy,
    LedgerDamaged,
    LedgerError,
    LedgerRefusal,
    LedgerUnavailable,
    LineageForgotten,
    MechanismNotAccepted,
    OtherUnit,
    Scope,
    ScopeMissing,
    StoreBehind,
    UnitLost,
    UnknownBlock,
    UnknownClient,
    UnknownGroup,
    UnknownKey,
    UnknownKeyId,
    UnknownLineage,
    UnsafeStore,
    WouldBeDone,
    WrongFormat,
)
from accounting.ledger.holdings import HoldRequest, JointHoldRequest
from accounting.ledger.ledger import Ledger
from accounting.ledger.receipts import Receipt
from accounting.ledger.values import (
    LARGEST_REQUEST,
    RAISED_AFTER_ANSWERS,
    Account,
    Balance,
    BlockAccount,
    Charge,
    ChargeRequest,
    ClientAccount,
    GroupAccount,
    Idempotency,
    LineageAccount,
    Quote,
    check_within,
    key_digest,
    new_api_key,
)
