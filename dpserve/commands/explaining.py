"""`dpserve explain`: what was released, by five analyses, for one person, and in plain words."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from dpserve.accounting.analyses import ALL, side_by_side
from dpserve.accounting.explanation import (
    AccountExplanation,
    AnsweredExplanation,
    Explanation,
    explain_account,
    parse_release,
)
from dpserve.accounting.explanation import explain as explain_releases
from dpserve.accounting.ledger import (
    Account,
    Ledger,
    LineageAccount,
    OtherUnit,
)
from dpserve.accounting.ledger.receipts import paying
from dpserve.accounting.losses import Cost
from dpserve.accounting.report import shown, shown_currency
from dpserve.audit.reports import check_files
from dpserve.commands import options
from dpserve.commands.acts import Sought, chosen_lineage
from dpserve.commands.console import figure, stdout_console
from dpserve.commands.options import LedgerOption
from dpserve.training.kinds.loading import load_model
from dpserve.training.options import Options, option

_PAGE = 1000
_STEPS = 25


class ReleasesByHand(Options):
    """Releases that are given by hand."""

    release: list[str] | None = option(
        None,
        "What was released: gaussian:NOISE_MULTIPLIER, laplace:SCALE (both over the sensitivity), exponential:EPSILON, "
        "pure:EPSILON, sgm:NOISE_MULTIPLIER:SAMPLING_RATE (a step of DP-SGD), sgm-replacement:NOISE_MULTIPLIER:BATCH:"
        "RECORDS (a step whose batch is drawn with replacement); several losses of one release are joined by commas. "
        "Repeatable.",
    )
    times: list[int] | None = option(None, "How often: once for every --release, in their order.")
    delta: float | None = option(None, "The delta of the analyses, as 1e-6.")
    epsilon: float | None = option(None, "Also say the delta that each analysis gives at this epsilon.")
    attack: str | None = option(
        None, "TPR:FPR of a membership attack: the epsilon it implies, and whether the releases allow it."
    )
    plot: Path | None = option(None, "Draw the analyses' epsilon as the releases are made into FILE.png.")


class AccountToExplain(LedgerOption):
    """An account of the ledger."""

    client: str | None = option(None, "Explain this client's account.", complete=options.client_names)
    group: str | None = option(None, "Explain this group's account.")
    lineage: str | None = option(
        None,
        "Explain this lineage's account; with --client or --group, the lineage it belongs to.",
        complete=options.lineage_names,
    )
    block: str | None = option(None, "Explain this block's account, of a lineage that has blocks.")
    price: str | None = option(
        None,
        "The next answer's price, written as a --release.",
        default_text="what the lineage's newest receipt paid",
    )
    bundle: Path | None = option(
        None,
        "A bundle of the lineage to explain; it says whether the privacy unit is a record, or all records of one "
        "person, where the lineage has served no model yet.",
    )

    def explained(self) -> AccountExplanation:
        """Read the account and explain it."""
        given = parse_release(self.price) if self.price else None

        async def read(opened: Ledger) -> AccountExplanation:
            return await self._account(opened, given)

        return self.run(read)

    async def _account(self, opened: Ledger, price: Cost | None) -> AccountExplanation:
        lineage, unit, blocks = self.lineage, None, tuple[str, ...]()
        if self.bundle is not None:
            certificate = load_model(self.bundle).certificate
            if lineage is not None and lineage != certificate.lineage:
                raise ValueError(f"{self.bundle} is of the lineage {certificate.lineage!r}, and not of {lineage!r}")
            lineage, unit = certificate.lineage, getattr(certificate, "unit", None)
            blocks = certificate.blocks
        name = self.client or self.group
        sought = Sought("client" if self.client else "group", name) if name else None
        whole = await opened.lineage(await chosen_lineage(opened, lineage, sought))
        if whole.unit is not None:
            if self.bundle is not None and whole.unit != (unit or ""):
                raise OtherUnit(whole.lineage, whole.unit, unit or "")
            unit = whole.unit or None
        if whole.newest_receipt:
            (newest,) = await opened.receipts(whole.lineage, after=whole.newest_receipt - 1, count=1)
            if price is None:
                price = Cost() if newest.terms.release else newest.cost
            if self.bundle is None:
                blocks = newest.terms.blocks
        account, shared = await self._payers(opened, whole, blocks)
        unlimited = self.client is not None and await _holds(opened, whole.lineage, self.client)
        return explain_account(
            account.state,
            price=price,
            shared_answers=min((each.answers_left(price) for each in shared), default=None)
            if price and price.losses
            else None,
            unlimited=unlimited,
            unit=unit,
        )

    async def _payers(
        self, opened: Ledger, whole: LineageAccount, blocks: tuple[str, ...]
    ) -> tuple[Account, Sequence[Account]]:
        """Return the account, and those that pay with it. blocks: of the model that is asked."""
        if self.client is not None:
            account, shared, _ = await opened.payers(whole.lineage, self.client, blocks)
            return account, shared
        if self.block is not None:
            block = await opened.block(whole.lineage, self.block)
            return block, [block]
        if self.group is not None:
            paid = [each for each in await opened.all_blocks(whole.lineage) if each.name in paying(blocks)]
            return await opened.group(whole.lineage, self.group), paid
        if whole.budget.limit or whole.spent:
            return whole, [whole]
        raise ValueError(
            f"the lineage {whole.lineage} has no budget but its blocks', and what a record loses is what its block "
            "lost: explain a block, with --block"
        )


def explain(by_hand: ReleasesByHand, account: AccountToExplain, as_json: bool = options.JSON) -> None:
    """Explain releases given by hand (--release), or an account of the ledger (--client, --group, --lineage).

    Of an account it prints the same object as GET /budget serves, with the privacy unit of its lineage.
    """
    check_files(by_hand.plot)
    explained: AnsweredExplanation | AccountExplanation
    if by_hand.release:
        if account.client or account.group or account.lineage or account.price or account.bundle:
            raise typer.BadParameter("explain releases, or an account of the ledger, not both")
        if by_hand.delta is None:
            raise typer.BadParameter("is needed with --release", param_hint="--delta")
        releases = _release_counts(by_hand.release, by_hand.times or [])
        attack = _rates(by_hand.attack) if by_hand.attack else None
        explained = explain_releases(releases, by_hand.delta, epsilon=by_hand.epsilon, attack=attack)
        if by_hand.plot is not None:
            plot_analyses(by_hand.plot, releases, by_hand.delta)
    elif account.client and account.group:
        raise typer.BadParameter("explain the account of a client, or that of a group, not both")
    elif account.client or account.group or account.lineage or account.bundle or account.block:
        if any(value not in (None, []) for value in by_hand.model_dump().values()):
            raise typer.BadParameter("an account has its own delta and releases: leave the other options out")
        explained = account.explained()
    else:
        raise typer.BadParameter("say what to explain: --release KIND:PARAMETER, --client NAME or --lineage NAME")
    if as_json:
        typer.echo(explained.model_dump_json(indent=2))
        return
    console = stdout_console()
    if isinstance(explained, AnsweredExplanation):
        _print_explanation(console, explained, "what it means for one record")
        _print_answers(console, explained)
    else:
        _print_account(console, explained)
        one = "record" if explained.explanation.unit is None else "unit"
        _print_explanation(console, explained.explanation, f"what its limit means for one {one}")


def _release_counts(releases: list[str], times: list[int]) -> dict[Cost, int]:
    if times and len(times) != len(releases):
        raise typer.BadParameter(f"give one for each of the {len(releases)} --release", param_hint="--times")
    counts: dict[Cost, int] = {}
    for text, count in zip(releases, times or [1] * len(releases), strict=True):
        cost = parse_release(text)
        counts[cost] = counts.get(cost, 0) + count
    return counts


def _rates(attack: str) -> tuple[float, float]:
    rate, _, accused = attack.partition(":")
    try:
        return float(rate), float(accused)
    except ValueError as error:
        raise ValueError(f"an attack is written TPR:FPR, as 0.08:0.05, not {attack!r}") from error


async def _holds(ledger: Ledger, lineage: str, client: str) -> bool:
    """Return whether the client has paid for a pay-once model: one of its receipts in the store says so."""
    after = 0
    while page := await ledger.client_receipts(lineage, client, after=after, count=_PAGE):
        if any(receipt.terms.release for receipt in page):
            return True
        after = page[-1].number
    return False


def _print_account(console: Console, account: AccountExplanation) -> None:
    table = Table("account", shown_currency(account))
    for name, amount in (("limit", account.limit), ("spent", account.spent), ("remaining", account.remaining)):
        table.add_row(name, shown(account, amount))
    console.print(table, highlight=False)


def _print_explanation(console: Console, explained: Explanation, about: str) -> None:
    table = Table("analysis", f"epsilon at delta = {explained.delta:g}", "prices", "how")
    least = min(each.epsilon for each in explained.analyses if each.epsilon is not None)
    holds = "tightest" if explained.epsilon <= least else "tightest of those whose prices may adapt"
    for analysis in explained.analyses:
        epsilon = "does not apply" if analysis.epsilon is None else f"{analysis.epsilon:.4g}"
        mark = f"  <- {holds}" if analysis.name == explained.tightest else ""
        prices = "may adapt" if analysis.holds_for_adaptive_prices else "fixed"
        table.add_row(analysis.name, epsilon + mark, prices, analysis.method)
    console.print(table, highlight=False)
    meaning = explained.identifiability
    bounds = Table(about, "reading", "source")
    for what, bound, source in (
        ("belief in its presence, from even odds", meaning.posterior_belief_bound, "except with probability delta"),
        ("  1/(1 + e^-epsilon)", meaning.posterior_belief_at_epsilon, "Bernau et al. 2021; no bound by itself"),
        (
            "membership advantage, TPR - FPR",
            meaning.membership_advantage_bound,
            "proved here, exact for Gaussian noise",
        ),
        ("  of any (epsilon, delta)", meaning.advantage_bound_from_epsilon_delta, "Kairouz et al. 2015"),
    ):
        bounds.add_row(what, f"{bound:.4f}", source)
    for power in explained.attack_power:
        bounds.add_row(
            f"TPR at FPR {power.false_positive_rate:g}", f"{power.true_positive_rate_bound:.4f}", "1 - f(FPR)"
        )
    console.print(bounds, highlight=False)
    console.print("\n" + explained.in_plain_words, highlight=False)


def _print_answers(console: Console, explained: AnsweredExplanation) -> None:
    if explained.deltas:
        table = Table("analysis", f"delta at epsilon = {explained.deltas[0].epsilon:g}")
        for reading in explained.deltas:
            table.add_row(reading.name, f"{reading.delta:.4g}")
        console.print("", table, highlight=False)
    attack = explained.attack
    if attack is not None:
        console.print(
            f"\nAn attack that finds {attack.true_positive_rate:.4g} of the members and accuses "
            f"{attack.false_positive_rate:.4g} of the others shows epsilon to be at least {attack.least_epsilon:.4g} "
            f"at delta = {explained.delta:g}. These releases allow it to find "
            f"{attack.true_positive_rate_bound:.4g}: it is "
            + ("possible." if attack.possible else "not possible, so something else was released as well."),
            highlight=False,
        )


def plot_analyses(path: Path, releases: Mapping[Cost, int], delta: float) -> None:
    """Draw the epsilon of every analysis as the releases are made, in even proportion, from few to all of them.

    Raises ValueError where the file cannot be written.
    """
    shares = np.geomspace(1 / max(1, *releases.values(), 1), 1, _STEPS)
    counts = [{cost: max(1, round(times * share)) for cost, times in releases.items()} for share in shares]
    with figure(path) as axes:
        totals = [sum(made.values()) for made in counts]
        analyses = [side_by_side(made, delta) for made in counts]
        # zCDP and RDP often agree: a dashed line lets the other be seen.
        for name in ALL:
            # None, where an analysis does not apply, becomes a gap.
            axes.plot(
                totals,
                np.array([one[name].epsilon for one in analyses], dtype=np.float64),
                "--" if name == "rdp" else "-",
                label=name,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("releases")
        axes.set_ylabel(f"epsilon at delta = {delta:g}")
        axes.set_title("losses of one release: " + " and ".join(map(str, releases)), fontsize="medium")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
