"""`dpserve reproduce`: with the attack of `audit.membership` for the privacy leakage."""

from collections.abc import Callable, Sequence

import typer

from training.reproduction.command import lu2022, papers
from training.reproduction.measures import AttackTraining, KnownAnswers, MembershipAttack


def _train(
    known: Sequence[KnownAnswers], seeds: Sequence[int], on_share: Callable[[float], None]
) -> Sequence[MembershipAttack]:
    from audit.membership.attack_network import train_blind_networks

    return train_blind_networks(known, seeds, on_share=on_share)


app = typer.Typer(
    name="reproduce",
    help="Measure again: a published paper, or our own tables.",
    no_args_is_help=True,
    context_settings={"obj": AttackTraining("one network that sees answers alone", _train)},
)
app.callback()(papers)
app.command("lu2022")(lu2022)
