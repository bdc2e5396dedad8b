"""The ledger: budgets that cannot be overspent, and receipts for every question that was paid for."""

# ruff: noqa: F401
# mypy: implicit-reexport

from dpserve.accounting.ledger.api_keys import SCOPES, ApiKey, KeyScope, checked_scopes, expiry
from dpserve.accounting.ledger.embedded import EmbeddedStore
from dpserve.accounting.ledger.errors import (
    ActRefused,
    BudgetExhausted,
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
    NoBudget,
    NotPaidFor,
    OtherBudget,
    OtherUnit,
    Scope,
    ScopeMissing,
    StoreBehind,
    TooFewDisks,
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
from dpserve.accounting.ledger.ledger import Ledger
from dpserve.accounting.ledger.owner import Acts
from dpserve.accounting.ledger.purchases import Purchase, ReleaseRequest
from dpserve.accounting.ledger.receipts import Receipt
from dpserve.accounting.ledger.values import (
    LARGEST_REQUEST,
    RAISED_AFTER_ANSWERS,
    Account,
    Balance,
    BlockAccount,
    Charge,
    Chargeable,
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
