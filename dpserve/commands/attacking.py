"""`dpserve attack`."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from dpserve.commands import completing
from dpserve.commands.console import shares
from dpserve.commands.reporting import reported
from dpserve.commands.rows import Ignore, Label

if TYPE_CHECKING:
    from audit.endpoint import Endpoint
    from audit.membership.attack import TrainShadows
    from audit.membership.candidates import Candidates, Labelled
    from audit.reports import Report


BUNDLE = "A bundle, in place of a service"
SHADOWS = "Shadow models"
_OF_A_BUNDLE = ("mechanism", "price", "keys", "rho", "lineage_rho", "delta")
_OF_A_SERVICE = ("key_file",)


@reported("attack")
def attack(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="The service's URL, http://host:port, or a bundle's folder.")],
    data: Annotated[
        str | None, typer.Option(help="'digits': its records as members, and those it holds out as non-members.")
    ] = None,
    members: Annotated[
        Path | None, typer.Option(help="Records that were trained on: FILE.csv, FILE.npz or FILE.npz:ARRAY.")
    ] = None,
    non_members: Annotated[
        Path | None, typer.Option(help="Records of the same distribution that were not trained on.")
    ] = None,
    population: Annotated[
        Path | None, typer.Option(help="More records of the same distribution, for shadow models.")
    ] = None,
    label: Label = "label",
    ignore: Ignore = None,
    class_names: Annotated[
        str | None, typer.Option(help="VALUE=NAME of each class, where the files have other values than class names.")
    ] = None,
    key_file: Annotated[
        list[Path] | None,
        typer.Option(help="URL: a file with an API key. Repeat it, and the keys pool their answers."),
    ] = None,
    copies: Annotated[
        int, typer.Option(min=1, help="Rows asked about for each record: its own and near-copies, to average noise.")
    ] = 1,
    candidates: Annotated[
        int | None, typer.Option(min=1, help="At most so many members, and as many non-members.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of intervals and of the lower bound.")] = 0.95,
    journal: Annotated[
        Path | None, typer.Option(help="Where answers are kept, so that an interrupted attack goes on.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Everything except the endpoint's noise follows from it.")] = 0,
    shadow_models: Annotated[
        int, typer.Option(min=2, help="How many shadow models are trained.", rich_help_panel=SHADOWS)
    ] = 20,
    shadow_records: Annotated[
        int | None,
        typer.Option(
            min=1, help="Of each shadow model. [default: as many as there are members]", rich_help_panel=SHADOWS
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Train shadow models on this Ray cluster; needs extra ray.", rich_help_panel=SHADOWS
        ),
    ] = None,
    mechanism: Annotated[
        str,
        typer.Option(
            help="How answers are made private.", rich_help_panel=BUNDLE, autocompletion=completing.mechanisms
        ),
    ] = "gaussian",
    price: Annotated[
        str, typer.Option(help="The price of one row, as for 'serve'.", rich_help_panel=BUNDLE)
    ] = "noise-multiplier:20",
    keys: Annotated[int, typer.Option(min=1, help="How many keys pool their answers.", rich_help_panel=BUNDLE)] = 1,
    rho: Annotated[
        float | None, typer.Option(help="The budget of every key, as zCDP rho.", rich_help_panel=BUNDLE)
    ] = None,
    lineage_rho: Annotated[
        float | None, typer.Option(help="What all keys together may spend.", rich_help_panel=BUNDLE)
    ] = None,
    delta: Annotated[float, typer.Option(help="Where the claimed epsilon is stated.", rich_help_panel=BUNDLE)] = 1e-6,
) -> "Report":
    """Attack an endpoint as an adversary with API keys would: who was trained on? Exit status 3 convicts its claim.

    Exit status 4: inconclusive, because members and non-members differ by themselves or overlap.

    Models that are networks need the extra torch, and so do attack networks, which are left out without it. The noise
    of a bundle's answers follows from --seed too.
    """
    with ExitStack() as opened:
        service = target.startswith(("http://", "https://"))
        _check_target(context, target, service=service)
        if service:
            endpoints = _services(opened, target, key_file or [])
        else:
            endpoints = _bundles(
                Path(target), mechanism, price, keys, rho=rho, lineage_rho=lineage_rho, delta=delta, seed=seed
            )
        found = _candidates(endpoints[0], data, members, non_members, population, label, ignore or [], class_names)
        from audit import presentation
        from audit.membership.attack import Attack, Choices, train_here

        choices = Choices(
            shadow_models=shadow_models,
            shadow_records=shadow_records,
            confidence=confidence,
            copies=copies,
            most=candidates,
            seed=seed,
        )
        errors = Console(stderr=True)
        with _resumable(errors, journal), shares("attack") as progress:
            outcome = Attack(
                endpoints,
                found,
                choices,
                journal,
                train=train_here if ray is None else _trainer(ray),
                progress=progress,
                on_plan=lambda plan: errors.print("\n".join(plan.sentences()), highlight=False),
            ).run()
    return presentation.of_attack(outcome)


def _check_target(context: typer.Context, target: str, *, service: bool) -> None:
    """Refuse options that the target would ignore, and what is neither an address nor a folder."""
    if not service and not Path(target).is_dir():
        raise ValueError(f"{target} is neither a service's address, http://host:port, nor the folder of a bundle")
    for name in _OF_A_BUNDLE if service else _OF_A_SERVICE:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = name.replace("_", "-")
            raise ValueError(
                f"--{option} is for bundles; a service has its own"
                if service
                else f"--{option} is for services; a bundle asks for no key (--keys says how many pool their answers)"
            )


@contextmanager
def _resumable(errors: Console, journal: Path | None) -> Iterator[None]:
    """Say on Ctrl-C what is kept and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        errors.print(
            "interrupted; nothing is kept without --journal FILE"
            if journal is None
            else f"interrupted; what was answered is in {journal}, and the same command goes on from there",
            highlight=False,
            soft_wrap=True,
        )
        raise


def _services(opened: ExitStack, url: str, key_files: Sequence[Path]) -> "list[Endpoint]":
    from dpserve.endpoint import ServiceEndpoint

    if not key_files:
        raise ValueError("name a file with your API key with --key-file")
    return [opened.enter_context(ServiceEndpoint(url, file.read_text("utf-8").strip())) for file in key_files]


def _bundles(
    folder: Path,
    mechanism: str,
    price: str,
    keys: int,
    *,
    rho: float | None,
    lineage_rho: float | None,
    delta: float,
    seed: int,
) -> "list[Endpoint]":
    from accounting.budgets import Budget, accepts_for
    from accounting.losses import Cost
    from accounting.picorho import budget as picorho_of
    from audit.in_process import LARGEST_RHO, BundleEndpoint, Lineage, ReleaseEndpoint, rehearsal_key
    from mechanisms.mechanism import priced
    from training.loading import load_model
    from training.releases.model import ReleasedModel

    head = load_model(folder)
    if isinstance(head, ReleasedModel):
        kind = accepts_for(Cost.parse(head.certificate.cost))
        paid_once = Budget.from_rho(LARGEST_RHO if rho is None else rho, delta, kind)
        shared = Lineage(None if lineage_rho is None else picorho_of(lineage_rho))
        return [ReleaseEndpoint(head, paid_once, shared, key=key) for key in range(keys)]
    chosen = priced(mechanism, price, len(head.certificate.classes))
    account = Budget.from_rho(LARGEST_RHO if rho is None else rho, delta, accepts_for(chosen.cost))
    lineage = Lineage(None if lineage_rho is None else picorho_of(lineage_rho))
    noise_key = rehearsal_key(seed)
    return [BundleEndpoint(head, chosen, noise_key, account, lineage, key=key) for key in range(keys)]


def _candidates(
    endpoint: "Endpoint",
    data: str | None,
    members: Path | None,
    non_members: Path | None,
    population: Path | None,
    label: str,
    ignore: Sequence[str],
    class_names: str | None,
) -> "Candidates":
    from audit.membership.candidates import Candidates, digits, read_labelled

    if data is not None:
        if data != "digits" or members is not None or non_members is not None:
            raise ValueError("--data takes 'digits' alone; name your own files with --members and --non-members")
        return digits()
    if members is None or non_members is None:
        raise ValueError("name records that were trained on with --members, and others with --non-members")
    model = endpoint.model()

    def read(path: Path) -> "Labelled":
        return read_labelled(path, model, label=label, ignore=ignore, class_names=class_names)

    return Candidates(read(members), read(non_members), None if population is None else read(population))


def _trainer(ray: str) -> "TrainShadows":
    from audit.membership.cluster import train_on_ray

    return train_on_ray(ray)
