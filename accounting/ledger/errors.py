"""The ledger's errors: it raises one when it does not charge.

Two families, told apart because they mean different things to whoever asked: a `LedgerRefusal` is a decision,
taken inside the store, which changed nothing there; `LedgerUnavailable` means that no decision is known, and
whoever gets it must give no answer. Every message is one line that can be shown to the owner as it is.
"""

from collections.abc import Sequence
from typing import Any, Literal, Self

from dpserve.accounting.budgets import Budget
from dpserve.accounting.budgets import Scope as Scope
from dpserve.accounting.currency import RHO, Currency
from dpserve.accounting.messages import Message

NO_LOCKS = "its file system does not refuse a second lock of a file (flock), so that two services would write at once"
"""The reason why a folder cannot be used."""


class LedgerError(Exception):
    """Anything that the ledger raises.

    `says`: what a class always says, around what it is given, `named`.
    """

    says = "{}"

    def __init__(self, *named: object) -> None:
        """Say it of what is named."""
        self.named = named
        super().__init__(named[0] if self.says == "{}" and len(named) == 1 else self.says.format(*named))


class LedgerRefusal(LedgerError):
    """The ledger decided against a request. Nothing was charged and nothing was written."""


class BudgetExhausted(LedgerRefusal):
    """The request costs more than an account has left. All amounts are in 1e-12 of the `currency`, what it counts.

    `scope` is the account that refused, `cost` what the whole request would have cost, `spent`, `limit` and
    `remaining` that account's own. `price` is the cost in words, as `costs rho = 0.5`, and `left` what remains of which
    limit: both follow from what was spent, and of an account that others share a client may hear neither.
    """

    def __init__(
        self,
        scope: Scope,
        cost: int,
        spent: int,
        limit: int,
        currency: Currency = RHO,
        budget: Budget | None = None,
        block: str = "",
    ) -> None:
        """Take the amounts as the store gave them. budget: the account's, if known; block: its name, if a block's."""
        self.scope = scope
        self.block = block
        self.cost = cost
        self.spent = spent
        self.limit = limit
        self.remaining = max(0, limit - spent)
        self.currency = currency
        self.price, left = (
            (f"costs {currency.words(cost)}", f"{currency.value(self.remaining):.6g} of {currency.value(limit):.6g}")
            if budget is None
            else budget.words_of_cost(spent, cost)
        )
        if self.is_spent:
            left = f"nothing of {left.partition(' of ')[2]}"
        self.left = f"{left} is left"
        # Of an account that others share a client hears only that it refuses.
        amounts = f": the request {self.price}, and {self.left}" if scope == "client" else ""
        whose = f"block {block}" if block else scope
        super().__init__(f"the {whose}'s budget does not pay for the request{amounts}")

    @property
    def is_spent(self) -> bool:
        """Whether a millionth of the budget is left at most, which pays for nothing."""
        return self.remaining * 10**6 <= self.limit

    @classmethod
    def of_budget(cls, scope: Scope, budget: Budget, cost: int, spent: int, block: str = "") -> Self:
        """Return the refusal of an account with this budget. block: its name, if it is one's."""
        return cls(scope, cost, spent, budget.limit, budget.currency, budget, block)


class MechanismNotAccepted(LedgerRefusal):
    """An account is asked to pay for a privacy loss of a kind that its budget was not converted for."""

    def __init__(self, scope: Scope, cost: str, block: str = "") -> None:
        """`cost` is the refused cost, as text; `block` the name of the account, if it is a block's."""
        self.scope = scope
        self.cost = cost
        self.block = block
        whose = f"block {block}" if block else scope
        super().__init__(f"the {whose}'s account does not pay for {cost!r}: {self._why}")

    _why = "its owner said what it accepts"


class CoinsExhausted(MechanismNotAccepted):
    """An account's delta does not provide for the coins of a release that is Gaussian except for a coin."""

    _why = "its delta does not provide for so many releases that are Gaussian except with a small probability"


class IdempotencyConflict(LedgerRefusal):
    """The client used this idempotency key before, for a request with another body."""

    says = "this idempotency key was used before, for a request with another body"


class ClientRevoked(LedgerRefusal):
    """The client's access was revoked, its replays included."""

    says = "client {!r} is revoked"


class UnknownClient(LedgerRefusal):
    """The lineage has no client of this name."""

    says = "the lineage has no client {!r}"


class UnknownGroup(LedgerRefusal):
    """The lineage has no group of this name."""

    says = "the lineage has no group {!r}"


class UnknownBlock(LedgerRefusal):
    """The lineage has no block of this name."""

    says = "the lineage has no block {!r}: it opens when a model that was trained on it is first served"


class UnknownLineage(LedgerRefusal):
    """The ledger holds no account of this lineage."""

    says = "the ledger has no lineage {!r}"


class NoBudget(LedgerRefusal):
    """A block that is to pay has no account, and no budget is given with which it would open. Nothing was opened."""

    def __init__(self, lineage: str, block: str) -> None:
        """Say what there is to be done. block: empty for the one without a name."""
        self.lineage = lineage
        if block:
            super().__init__(
                Message(
                    "the block {} of the lineage {} has no budget yet: say what it opens with, with {lineage_epsilon}",
                    block,
                    lineage,
                )
            )
        else:
            super().__init__(
                Message(
                    "the lineage {} has no budget yet: say what all clients together may learn, with {lineage_budget}; "
                    "or open this one alone with 'dpserve lineage set-budget'",
                    lineage,
                )
            )


class OtherBudget(LedgerRefusal):
    """A lineage has another budget than the one that is given: only its owner changes it. Nothing was changed."""

    def __init__(self, lineage: str, accepts: str = "", asked: str = "") -> None:
        """Say what there is to be done. accepts, asked: which charges it pays for and is to pay for, if they differ."""
        if accepts != asked:
            text = Message(
                "the lineage {} pays for {!r} charges, and this is for {!r} ones: choose a mechanism that it pays for, "
                "or give it another budget with 'dpserve lineage set-budget'",
                lineage,
                accepts,
                asked,
            )
        else:
            text = Message(
                "the lineage {} has another budget already; leave {lineage_budget} out, or change it with 'dpserve "
                "lineage set-budget'",
                lineage,
            )
        super().__init__(text)


class NotPaidFor(LedgerRefusal):
    """An account does not pay for what is to be bought. `refused`: the refusal, as the ledger has it."""

    def __init__(self, sentence: str, refused: BudgetExhausted | MechanismNotAccepted) -> None:
        """Take the sentence for the owner."""
        super().__init__(sentence)
        self.refused = refused


class LineageForgotten(LedgerRefusal):
    """The owner had the lineage forgotten, as a mistake that charged nothing. Takes its name, which is used up."""

    says = (
        "the lineage {!r} was forgotten: nothing of it is charged or answered any more, and its name is not given again"
    )


class UnknownKey(LedgerRefusal):
    """No client of the lineage has this API key. Names nothing: a wrong key must not find its way into a log."""

    says = "no client has this key"


class UnknownKeyId(UnknownKey):
    """A client has no API key of the id that the owner named. Takes the client, and the ids that it has."""

    says = "{} has no API key of this id; it has {}"


class KeyExpired(LedgerRefusal):
    """The API key was its client's and has expired, by the store's clock; or what stood in its place has."""

    def __init__(self, what: str = "API key") -> None:
        """Name nothing but what expired."""
        super().__init__(f"this {what} has expired")


class ScopeMissing(LedgerRefusal):
    """The API key is its client's and is not good for this. `scope`: what it would need."""

    def __init__(self, needed: str, what: str = "API key") -> None:
        """Name the scope, and what lacks it."""
        self.needed = needed
        super().__init__(f"this {what} lacks the scope {needed!r}")


ActRefusal = Literal[
    "act-between",
    "coins",
    "delta",
    "exists",
    "has-asked",
    "has-charged",
    "key-in-use",
    "more-than-above",
    "no-keys",
    "other-currency",
    "too-late",
    "too-many-keys",
]


class ActRefused(LedgerRefusal):
    """The change that the owner asks for is impossible. `reason` says why in a word, `text` in a line."""

    def __init__(self, reason: ActRefusal, text: str) -> None:
        """Keep the word, and show the line."""
        self.reason = reason
        super().__init__(text)


class WouldBeDone(Exception):
    """A dry run found nothing to refuse an act for."""


class OtherUnit(LedgerRefusal):
    """The lineage protects another privacy unit than what was to be charged to it. Nothing was charged.

    Takes the lineage, its unit, and the other: names of columns of units, empty for one record.
    """

    def __init__(self, lineage: str, unit: str, other: str) -> None:
        """Say what there is to be done."""
        self.lineage, self.unit, self.other = lineage, unit, other
        protected, not_protected = (
            f"all records with one value of {each!r}" if each else "one record" for each in (unit, other)
        )
        super().__init__(
            Message(
                "the lineage {} protects {}, and this {}: of a mixture its budget would bound neither. With these "
                "records, train {}, under that name of the column in every table; a lineage with another unit takes "
                "records that are in no lineage yet",
                lineage,
                protected,
                not_protected,
                Message("with {unit:{}}", unit) if unit else Message("without {unit}"),
            )
        )


class UnitLost(LedgerRefusal):
    """Nobody knows which privacy unit a lineage protects that was reconciled. Nothing was charged."""

    def __init__(self, lineage: str) -> None:
        """Say what there is to be done."""
        self.lineage = lineage
        super().__init__(
            Message(
                "the lineage {} was restored, and neither its store nor a journal says which privacy unit "
                "its models had: say it, as its bundles' certificates do, when the ledger is reconciled, "
                "with {lineage:{}} and {unit:COLUMN}, or {unit:''} for one record",
                lineage,
                lineage,
            )
        )


class LedgerUnavailable(LedgerError):
    """The store did not say what became of the call: give no answer.

    A charge that ended like this may or may not have happened. Asking again is safe: a question that was charged is not
    charged again.
    """


class LedgerBusy(LedgerUnavailable):
    """Calls before this one took too long, or others write under this service's name. Nothing was decided."""

    says = "the ledger is busy: ask again in a second"


class LedgerDamaged(LedgerUnavailable):
    """The store's entries of a lineage cannot be read, or contradict each other. Nothing was charged."""

    def __init__(self, lineage: str, what: str) -> None:
        """`what` is damaged, in one line."""
        self.lineage = lineage
        self.what = what
        super().__init__(f"the ledger of lineage {lineage} is damaged ({what}); run `dpserve ledger verify`")


class StoreBehind(LedgerUnavailable):
    """The store has lost writes that it acknowledged: a restored backup, a promoted replica, an emptied volume.

    Takes the lineage, how many writes one service was acknowledged, and how many of them the store has.
    """

    says = (
        "the ledger's store is older than what it acknowledged: of one service's {1} writes to lineage {0} it has {2}; "
        "run `dpserve ledger reconcile`"
    )


StoreFailure = Literal[
    "busy", "folder", "moved", "no-answer", "no-end", "no-start", "not-ours", "open-to-others", "path", "platform"
]


class EmbeddedStoreFailed(LedgerUnavailable):
    """The embedded store could not be started, found again or shut down. `reason` says why in a word."""

    def __init__(self, reason: StoreFailure, text: str) -> None:
        """Keep the word, and show the line."""
        self.reason = reason
        super().__init__(text)


class TooFewDisks(LedgerUnavailable):
    """A write is not on as many disks as were asked for: a replica that is promoted may lack it.

    Takes on how many of the primary's own disks it is, on how many replicas', and on how many of those it was to be;
    and what the primary replied, which has done it.
    """

    def __init__(self, own: int, replicas: int, wanted: int, reply: Any = None) -> None:
        """Count the disks."""
        self.own = own
        self.replicas = replicas
        self.reply = reply
        super().__init__(
            f"the ledger's store has the write on {own} disk of its own and on those of {replicas} of {wanted} replicas"
        )


class UnsafeStore(LedgerUnavailable):
    """The store's settings would let it lose or forget a charge. `failures` has one line for each."""

    def __init__(self, failures: Sequence[str]) -> None:
        """Join the lines."""
        self.failures = tuple(failures)
        super().__init__(Message("\n").join(failures))


class WrongFormat(LedgerUnavailable):
    """The store holds a lineage that another release of dpserve wrote in a format of its own.

    Takes the lineage, its format, and the one that this program knows.
    """

    says = (
        "lineage {} is written in format {} of the ledger, and this program knows format {}: use the release of "
        "dpserve that wrote it, or begin anew in an empty store with what that release says is left of each budget "
        "('dpserve lineage list', 'dpserve clients list')"
    )


class CannotRecover(LedgerError):
    """The ledger cannot be backed up, restored or reconciled like this; one line says why. Nothing was changed."""
