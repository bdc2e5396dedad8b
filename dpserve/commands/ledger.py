"""`dpserve ledger`: whether the books are right, copies of them, and what to do after a loss."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from dpserve.accounting.ledger import (
    BlockAccount,
    Ledger,
    LedgerDamaged,
    LedgerUnavailable,
    LineageAccount,
    LineageForgotten,
    UnknownLineage,
)
from dpserve.accounting.ledger.backups import restore as restored
from dpserve.accounting.ledger.export import export as exported
from dpserve.accounting.ledger.journal import JournalFiles, journal_folder, open_journals
from dpserve.accounting.ledger.recovery import DeclaredLoss, Reconciliation
from dpserve.accounting.ledger.recovery import reconcile as reconciled
from dpserve.accounting.ledger.upkeep import Task, note_upkeep
from dpserve.accounting.ledger.verification import Verification, Watcher, unwatched
from dpserve.accounting.ledger.verification import verify as verified
from dpserve.accounting.losses import Cost
from dpserve.accounting.picorho import to_rho
from dpserve.accounting.whole_files import drafted
from dpserve.commands import options
from dpserve.commands.accounts import figures_of
from dpserve.commands.acts import ActOnLineage, lineage_named
from dpserve.commands.command import Group
from dpserve.commands.console import shares, stdout_console, whole
from dpserve.commands.errors import CommandError
from dpserve.commands.options import AccountBudget, ActsOnLedger, LedgerOption
from dpserve.training.options import Options, option

app = Group("Check, copy and mend the ledger.")


class EveryLineage(LedgerOption):
    """One lineage of a ledger, or all of them."""

    lineage: str | None = option(
        None, "The lineage, or a bundle of it.", default_text="every lineage", complete=options.lineage_names
    )
    journal: list[Path] | None = option(
        None, "A journal of another service, or a folder of them, in addition to those in your state folder."
    )


class ReconciledLineage(EveryLineage, ActsOnLedger):
    """One lineage of a ledger to reconcile, or all of them."""

    unit: str | None = option(
        None, "The privacy unit of the lineage's models, where no journal knows it: a column, or '' for one record."
    )


class LostLineage(Options):
    """Options that open a lineage again that a store has lost, and that declare a loss."""

    declare_lost: int | None = option(
        None, "The most rows that were answered and whose receipts are lost for good; 0 says that none were.", ge=0
    )
    lost_cost: str | None = option(None, "The cost of each of them.", default_text="the dearest that was ever charged")
    lost_client: str = option("", "The client who was answered.", default_text="unknown; the lineage pays")
    lost_blocks: str | None = option(
        None,
        "Of a lineage with blocks: those whose models can have given the answers, A,B,C; '' for the records in none "
        "that has a name. Each is charged all of it.",
    )
    lost_block_accounts: str | None = option(
        None, "Of these: the blocks whose accounts the store lost, too, A,B,C. They come back without a budget."
    )
    declare_again: bool = option(False, "The same loss happened again: charge it another time.")
    yes: bool = option(False, "Do not ask before charging a declared loss.")


@app.command("status")
def status(ledger: LedgerOption) -> None:
    """Say for each lineage what is spent, how many receipts and acts it has, and whether the journals agree."""

    async def read(opened: Ledger) -> list[tuple[str, ...]]:
        await _lineages_to_recover(opened, None)
        return [
            (
                account.lineage,
                "\n".join(_spent(block) for block in blocks if block.budget.limit or block.spent),
                str(sum(block.releases for block in blocks)),
                str(account.newest_receipt),
                str(account.newest_act),
                account.acts_head.hex()[:16],
                await _fence(opened, account.lineage),
            )
            for account in await opened.lineages()
            for blocks in [await opened.all_blocks(account.lineage)]
        ]

    table = whole("lineage", "spent", "releases", "receipts", "acts", "newest act's hash", "journals")
    for row in ledger.run(read):
        table.add_row(*row)
    stdout_console().print(table, highlight=False)


def _spent(account: LineageAccount | BlockAccount) -> str:
    spent, _, limit, unit, _ = figures_of(account)
    return f"{f'{account.name}: ' if account.name else ''}{spent} of {limit}, {unit}"


async def _fence(ledger: Ledger, lineage: str) -> str:
    journals = [journal.acknowledged for journal in _journals_of([lineage], None)]
    behind = await ledger.services_behind(lineage, journals)
    return f"the store is older than {behind} of them: reconcile" if behind else "agree"


@app.command("verify")
def verify(
    of: EveryLineage,
    as_json: bool = option(False, "Print a line of JSON for each lineage, with every missing receipt.", "--json"),
) -> None:
    """Walk the chains of receipts and acts, and compute every balance again. Exit status 1 if anything is wrong."""

    async def apply(opened: Ledger) -> list[Verification]:
        findings = []
        for name in await _lineages(opened, of):
            # Of those that the store lists, one may never have been opened.
            with nullcontext() if of.lineage is not None else suppress(UnknownLineage):
                journals = _journals_of([name], of.journal)
                findings.append(await verified(opened, name, journals, watch=watch))
        return findings

    with shares("verifying") as watch:
        all_checked = of.run(apply)
    wrong = 0
    for checked in all_checked:
        wrong += bool(checked.findings)
        if as_json:
            typer.echo(json.dumps(_verification_fields(checked)))
            continue
        typer.echo(
            f"{checked.lineage}: {checked.receipts} receipts, {checked.acts} acts, the newest act's "
            f"hash {checked.acts_head.hex()}: "
            f"{'wrong' if checked.findings else 'right'}"
        )
        for finding in checked.findings:
            typer.echo(f"  {finding}")
    if wrong:
        raise CommandError(
            "the ledger is not right: stop its services, restore a backup into an empty store with 'dpserve ledger "
            "restore', and put back what was charged since with 'dpserve ledger reconcile'"
        )


def _verification_fields(checked: Verification) -> dict[str, object]:
    return {
        "lineage": checked.lineage,
        "receipts": checked.receipts,
        "acts": checked.acts,
        "newest_act_hash": checked.acts_head.hex(),
        "right": not checked.findings,
        "findings": checked.findings,
        "missing": [
            {
                "receipt": receipt.sequence,
                "client": receipt.client,
                "client_receipt": receipt.number,
                "model": receipt.model,
                "mechanism": receipt.mechanism,
                "cost": receipt.terms.cost_text,
                "rows": receipt.releases,
                "time": receipt.time,
                "service": receipt.service,
                "hash": receipt.hash.hex(),
            }
            for receipt in checked.missing
        ],
    }


@app.command("export")
def export(
    lineage: ActOnLineage,
    out: Path | None = option(None, "The file to write.", default_text="standard output"),
) -> None:
    """Write the audit trail: who did what, when and why, and every receipt, as JSON lines."""

    async def apply(opened: Ledger, chosen: str) -> None:
        lines = exported(lineage.acting(opened), chosen)
        if out is not None:
            await _write(out, lines)
            return
        async for line in lines:
            sys.stdout.write(line)

    lineage.run_on(apply)


_STORED = "A backup: a file, or a URL of one."


def _read(place: str, watch: Watcher) -> Iterable[str]:
    """Return the lines of a backup, which are read as they are needed."""
    from dpserve.accounting.ledger.backup_files import BackupFile

    return BackupFile(place, watch=watch)


@app.command("backup")
def backup(
    *,
    place: str = option(..., "A file, or a URL of a new one, as s3://bucket/folder/ledger.backup.", argument=True),
    ledger: LedgerOption,
) -> None:
    """Write accounts, acts and receipts of every lineage, compressed. A service may go on meanwhile."""
    from dpserve.accounting.ledger.backup_files import write_backup

    async def apply(opened: Ledger) -> None:
        began = time.time()
        await write_backup(opened, place, await _lineages_to_recover(opened, None), watch=watch)
        await _note(opened, "backup", began)

    with shares("backing up") as watch, _files_at(place, "write"):
        ledger.run(apply)
    typer.echo(f"backed up to {place}; it holds digests of API keys: keep it as you keep the ledger")


async def _note(ledger: Ledger, task: Task, began: float) -> None:
    """Note for whoever watches the service that a task was done; a store that takes no note makes it no failure."""
    try:
        await note_upkeep(ledger, task, began)
    except LedgerUnavailable as error:
        typer.echo(f"Warning: the {task} could not be noted in the ledger: {error}", err=True)


@app.command("rehearse")
def rehearse(*, place: str = option(..., _STORED, argument=True), ledger: LedgerOption) -> None:
    """Restore a backup into a ledger beside this one, verify it, throw it away. Exit status 1 if it is not right."""
    began = time.time()

    async def apply() -> list[Verification]:
        with TemporaryDirectory(prefix="dpserve-") as folder:
            async with Ledger.open(Path(folder) / "ledger") as apart:
                names = await restored(apart, _read(place, watch), watch=watch)
                return [await verified(apart, name) for name in names]

    with shares("rehearsing") as watch, _files_at(place, "read"):
        checked = asyncio.run(apply())
    for one in checked:
        typer.echo(f"{one.lineage}: {one.receipts} receipts, {one.acts} acts: {'wrong' if one.findings else 'right'}")
        for finding in one.findings:
            typer.echo(f"  {finding}")
    if any(one.findings for one in checked):
        raise CommandError(f"what {place} restores is not right")
    ledger.run(lambda opened: _note(opened, "rehearsal", began))
    typer.echo(f"{place} can be restored")


@app.command("restore")
def restore(*, place: str = option(..., _STORED, argument=True), ledger: LedgerOption) -> None:
    """Restore a backup into a ledger that has none of its lineages. What was paid for stays paid for."""

    async def apply(opened: Ledger) -> list[str]:
        return await restored(opened, _read(place, watch), watch=watch)

    with shares("restoring") as watch, _files_at(place, "read"):
        names = ledger.run(apply)
    for name in names:
        typer.echo(f"restored the lineage {name}")
    typer.echo(
        "what was charged after the backup is not in it: run 'dpserve ledger reconcile' before you serve again. "
        "What you did after it is not in it either: lower budgets, revoke clients and end keys again"
    )


@contextmanager
def _files_at(place: str, what: str) -> Iterator[None]:
    """Say of files which of them could not be read or written."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"cannot {what} {place}: {error.strerror or error}") from error


@app.command("reconcile")
def reconcile(of: ReconciledLineage, lost: LostLineage, given: AccountBudget) -> None:
    """Put back the receipts that a store has lost and the services' journals hold, and let the services on again.

    With --lineage and its budget (--epsilon and --delta, or --rho) a lineage that the store has lost altogether is
    opened again first. Its clients come back without a budget, revoked: add them under new names.
    """
    budget = given.budget(given.accepts or "gaussian") if given.is_given else None
    if budget is not None and of.lineage is None:
        raise typer.BadParameter("a budget is for one lost lineage: name it", param_hint="--lineage")
    if lost.declare_lost is not None and of.lineage is None:
        raise typer.BadParameter("a loss is declared for one lineage: name it", param_hint="--lineage")

    if of.unit is not None and of.lineage is None:
        raise typer.BadParameter("a privacy unit is one lineage's: name it", param_hint="--lineage")

    async def apply(opened: Ledger) -> list[Reconciliation]:
        owner, done = of.acting(opened), []
        if budget is not None and of.lineage is not None:
            await owner.open_lineage(lineage_named(of.lineage), budget, time=time.time())
        for name in await _lineages(opened, of):
            journals = _journals_of([name], of.journal)
            declared = await _declared_loss(opened, name, journals, lost)
            # Nothing was charged to one that was forgotten.
            with nullcontext() if of.lineage is not None else suppress(LineageForgotten):
                done.append(await reconciled(owner, name, journals, declared, unit=of.unit, watch=watch))
        return done

    # A question and a bar would not share the screen.
    asks = lost.declare_lost is not None and not lost.yes
    with nullcontext(unwatched) if asks else shares("reconciling") as watch:
        all_done = of.run(apply)
    for one in all_done:
        typer.echo(
            f"{one.lineage}: {one.put_back} receipts put back ({one.renumbered} under new numbers), "
            f"{one.declared} releases declared lost, {one.services} services admitted again"
        )
        for block in one.blocks_without_budget:
            typer.echo(
                f"the block {block} was lost and is back without a budget: give it one with "
                f"'dpserve lineage set-budget {one.lineage} --block {block}'"
            )


async def _declared_loss(
    ledger: Ledger, lineage: str, journals: list[JournalFiles], lost: LostLineage
) -> DeclaredLoss | None:
    """Return the loss that the owner declares and means, if any. Raises CommandError."""
    if lost.declare_lost is None:
        return None
    declared = DeclaredLoss(
        lost.declare_lost,
        Cost.parse(lost.lost_cost) if lost.lost_cost else await _dearest(ledger, lineage, journals),
        lost.lost_client,
        time.time(),
        another=lost.declare_again,
        blocks=None if lost.lost_blocks is None else _blocks(lost.lost_blocks),
        gone=_blocks(lost.lost_block_accounts or ""),
    )
    await _check_blocks_named(ledger, lineage, journals, declared)
    _confirm(lineage, declared, yes=lost.yes)
    return declared


async def _check_blocks_named(
    ledger: Ledger, lineage: str, journals: list[JournalFiles], declared: DeclaredLoss
) -> None:
    """Raise CommandError where no block is named that had a loss, of a lineage whose blocks this machine knows.

    The store may have lost them, and what their records lost must not be charged elsewhere.
    """
    from dpserve.training.inputs.lineage import RecordRegistry

    account = await ledger.lineage(lineage)
    if declared.blocks is not None or not declared.releases or account.blocks:
        return
    if any(receipt.terms.blocks for journal in journals for receipt in journal.receipts):
        return  # they bring the blocks back, and these have to be named
    if names := [block for block in RecordRegistry(options.state_folder(), blocks_of=lineage).lineages if block]:
        raise CommandError(
            f"models of the lineage {lineage} were trained on blocks ({', '.join(names)}), which the store lost: name "
            "those whose models can have given the answers with --lost-blocks"
        )


def _blocks(named: str) -> tuple[str, ...]:
    return tuple(sorted(set(named.split(",")))) if named else ()


def _confirm(lineage: str, declared: DeclaredLoss, *, yes: bool) -> None:
    rho = to_rho(declared.cost.picorho * declared.releases)
    if not yes and not typer.confirm(f"Charge {lineage} with rho = {rho:.6g} for {declared.releases} lost releases?"):
        raise CommandError("nothing was changed")


async def _dearest(ledger: Ledger, lineage: str, journals: list[JournalFiles]) -> Cost:
    charged = {cost for block in await ledger.all_blocks(lineage) for cost in block.tally}
    charged |= {receipt.cost for journal in journals for receipt in journal.receipts}
    if not charged:
        raise CommandError("nothing was ever charged, so say what a lost release cost: --lost-cost")
    return max(charged, key=lambda cost: cost.picorho)


async def _lineages(ledger: Ledger, of: EveryLineage) -> list[str]:
    return [lineage_named(of.lineage)] if of.lineage is not None else await _lineages_to_recover(ledger, of.journal)


async def _lineages_to_recover(ledger: Ledger, given: list[Path] | None) -> list[str]:
    """Return the lineages that the store lists or a journal names: the list may be what was lost.

    Raises CommandError if a journal knows a lineage that the store does not: then the store lost it.
    """
    journals = [*open_journals(options.journals_folder()), *_open(given)]
    written = {journal.lineage for journal in journals if journal.acknowledged.writes}
    for name in sorted(written):
        try:
            await ledger.lineage(name)
        except (LedgerDamaged, LineageForgotten):
            continue  # it is there, and `verify` says what is wrong
        except UnknownLineage as error:
            raise CommandError(
                f"by its journal a service wrote to lineage {name}, and the ledger's store has no such lineage: it was "
                "emptied, or is another one; restore a backup with 'dpserve ledger restore' and reconcile, or, without "
                f"one, open it again: dpserve ledger reconcile --lineage {name} --epsilon E --delta D"
            ) from error
    return sorted(written.union(await ledger.lineage_names()))


def _journals_of(lineages: Sequence[str], given: list[Path] | None) -> list[JournalFiles]:
    own = (open_journals(journal_folder(options.journals_folder(), lineage)) for lineage in lineages)
    journals = [*chain.from_iterable(own), *_open(given)]
    return [journal for journal in journals if journal.lineage in lineages]


def _open(given: list[Path] | None) -> list[JournalFiles]:
    journals: list[JournalFiles] = []
    for path in given or []:
        if not path.exists():
            raise CommandError(f"there is no journal {path}")
        journals += open_journals(path)
    return journals


async def _write(path: Path, lines: AsyncIterator[str]) -> None:
    """Write a file of its owner's alone, whole or not at all."""
    try:
        with drafted(path) as file:
            async for line in lines:
                file.write(line.encode())
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error
