"""`dpserve attack`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer
from rich.console import Console

from dpserve.accounting.messages import Message
from dpserve.commands import options
from dpserve.commands.candidates import CandidateOptions, write_records
from dpserve.commands.console import shares
from dpserve.commands.foreign_endpoints import PredictUrlOptions
from dpserve.commands.reporting import ReportOptions, refuse
from dpserve.mechanisms.registry import DEFAULT
from dpserve.training.errors import WrongOption
from dpserve.training.options import Options, option

if TYPE_CHECKING:
    from dpserve.audit.endpoint import Endpoint
    from dpserve.audit.membership.candidates import Labelled
    from dpserve.audit.membership.shadow_models import TrainShadows

BUNDLE = "A bundle, in place of a service"
SHADOWS = "Shadow models"


class ShadowOptions(Options):
    """Options for training shadow models."""

    shadow_models: int = option(20, "How many shadow models are trained.", panel=SHADOWS, ge=2)
    shadow_records: int | None = option(
        None, "Of each shadow model.", panel=SHADOWS, default_text="as many as there are members", ge=1
    )
    ray: str | None = option(
        None, "Train shadow models on this Ray cluster; needs extra ray.", panel=SHADOWS, metavar="ADDRESS"
    )
    shadow_device: str | None = option(
        None,
        "Where shadow models are trained: cpu or cuda.",
        panel=SHADOWS,
        default_text="cuda where PyTorch finds a device, else cpu; on Ray cpu",
    )

    def trainer(self) -> "TrainShadows":
        """Return what trains them. Raises TrainingError, before anything is asked, for a device that is not there."""
        from functools import partial

        from dpserve.audit.membership.shadow_models import train_on_ray, train_shadow_models
        from dpserve.training.devices import training_device

        if self.ray is None:
            # Without a word on it the device is looked for where it is used: PyTorch takes seconds to say.
            device = None if self.shadow_device is None else training_device(self.shadow_device)
            return partial(train_shadow_models, device=device or "auto")
        if self.shadow_device not in (None, "cpu"):
            raise WrongOption("shadow_device", Message("goes without {ray}, whose workers train on their processors"))
        return train_on_ray(self.ray)


class BundleOptions(Options):
    """Options for attacking a bundle in this process."""

    mechanism: str = option(DEFAULT, "How answers are made private.", panel=BUNDLE, complete=options.mechanism_names)
    price: str | None = option(
        None, "The price of one row, as for 'serve'.", panel=BUNDLE, default_text="rho = 0.00125, with any mechanism"
    )
    keys: int = option(1, "How many keys pool their answers.", panel=BUNDLE, ge=1)
    rho: float | None = option(None, "The budget of every key, as zCDP rho.", panel=BUNDLE)
    lineage_rho: float | None = option(None, "What all keys together may spend.", panel=BUNDLE)
    delta: float = option(1e-6, "Where the claimed epsilon is stated.", panel=BUNDLE)

    def endpoints(self, folder: Path, seed: int) -> "list[Endpoint]":
        """Return the bundle as one endpoint for each key."""
        from dpserve.accounting.budgets import Budget, accepts_for
        from dpserve.accounting.losses import Cost
        from dpserve.accounting.picorho import budget as picorho_of
        from dpserve.audit.in_process import (
            LARGEST_RHO,
            BundleEndpoint,
            Lineage,
            ReleaseEndpoint,
            price_of_release,
            rehearsal_key,
        )
        from dpserve.mechanisms.registry import default_price, priced
        from dpserve.training.kinds.loading import load_model
        from dpserve.training.kinds.registry import pay_once

        head = load_model(folder)
        released = pay_once(head)
        lineage = Lineage(None if self.lineage_rho is None else picorho_of(self.lineage_rho))
        chosen = None
        if released is not None:
            cost = Cost.parse(released.certificate.cost)
            if self.rho is None:
                account = price_of_release(released, self.delta)
                return [ReleaseEndpoint(released, account, lineage, key=key) for key in range(self.keys)]
        else:
            chosen = priced(self.mechanism, self.price or default_price(self.mechanism), len(head.certificate.classes))
            cost = chosen.cost
        account = Budget.from_rho(LARGEST_RHO if self.rho is None else self.rho, self.delta, accepts_for(cost))
        if released is not None:
            return [ReleaseEndpoint(released, account, lineage, key=key) for key in range(self.keys)]
        assert chosen is not None
        noise = rehearsal_key(seed)
        return [BundleEndpoint(head, chosen, noise, account, lineage, key=key) for key in range(self.keys)]


def attack(
    *,
    context: typer.Context,
    target: str | None = option(None, "The service's URL, http://host:port, or a bundle's folder.", argument=True),
    key_file: list[Path] | None = option(
        None, "URL: a file with an API key. Repeat it, and the keys pool their answers."
    ),
    of: CandidateOptions,
    copies: int = option(1, "Rows asked about for each record: its own and near-copies, to average noise.", ge=1),
    confidence: float = option(0.95, "Of intervals and of the lower bound."),
    journal: Path | None = option(None, "Where answers are kept, so that an interrupted attack goes on."),
    records: Path | None = option(
        None, "Write each candidate's score, false positive rate and limit by the claim into FILE.csv."
    ),
    seed: int = option(0, "Everything except the endpoint's noise follows from it.", ge=0),
    shadows: ShadowOptions,
    bundle: BundleOptions,
    foreign: PredictUrlOptions,
    report: ReportOptions,
) -> None:
    """Attack an endpoint as an adversary with API keys would: who was trained on? Exit status 3 convicts its claim.

    Of a model that protects privacy units, members and non-members are units: the tables have their column.

    Exit status 4: inconclusive, because members and non-members differ by themselves or overlap.

    Models that are networks need the extra torch. The noise of a bundle's answers follows from --seed too.
    """
    if records is not None:
        from dpserve.audit.reports import check_writable

        if records.exists():
            raise WrongOption("records", f"names {records}, which is there and is not overwritten: name a new file")
        check_writable(records)
    if foreign.predict_url is not None:
        if target is not None:
            raise WrongOption("predict_url", "takes the place of TARGET")
        alone = (*BundleOptions.model_fields, *ShadowOptions.model_fields, "copies", "journal", "rows_of_each")
        refuse(context, "with --predict-url", *alone)
        report.show(foreign.measure(of, key_file or [], records, confidence=confidence, seed=seed))
    if target is None:
        raise ValueError("name a service's address or a bundle's folder, or another server with --predict-url")
    refuse(context, "without --predict-url", *PredictUrlOptions.model_fields)
    with ExitStack() as opened:
        service = target.startswith(("http://", "https://"))
        if service:
            refuse(context, "on a service, which has its own", *BundleOptions.model_fields)
        elif Path(target).is_dir():
            refuse(context, "on a bundle, which asks for no key: --keys says how many pool their answers", "key_file")
        else:
            raise ValueError(f"{target} is neither a service's address, http://host:port, nor the folder of a bundle")
        endpoints = _services(opened, target, key_file or []) if service else bundle.endpoints(Path(target), seed)
        model = endpoints[0].model()
        attack_plan = of.read(model)
        groups = of.groups(attack_plan)
        errors = Console(stderr=True)
        if not service:
            _warn_of_members(errors, Path(target), attack_plan.others)
            _say_budget(errors, endpoints[0].budget(), chosen=bundle.rho is not None)
        from dpserve.audit import presentation
        from dpserve.audit.membership.attack import Attack, AttackChoices

        choices = AttackChoices(
            shadow_models=shadows.shadow_models,
            shadow_records=shadows.shadow_records,
            confidence=confidence,
            copies=copies,
            most=of.candidates,
            rows_of_each=of.rows_of_each,
            seed=seed,
        )
        train = shadows.trainer()
        with _resumable(errors, journal), shares("attack") as progress:
            outcome = Attack(
                endpoints,
                attack_plan,
                choices,
                journal,
                train=train,
                progress=progress,
                on_plan=lambda plan: errors.print("\n".join(plan.sentences()), highlight=False),
            ).run()
    write_records(records, outcome.exposure, groups)
    report.show(presentation.attack_report(outcome, groups))


def _say_budget(errors: Console, budget: Mapping[str, Any], *, chosen: bool) -> None:
    """Say what an attack on a bundle may spend."""
    errors.print(
        f"in this process, without a ledger: the budget of each key is {budget['currency']} = "
        f"{budget['limit'][budget['currency']]:.6g}" + ("" if chosen else "; --rho takes another"),
        highlight=False,
        soft_wrap=True,
    )


def _warn_of_members(errors: Console, bundle: Path, others: "Labelled") -> None:
    """Say how many non-members of an attack on a bundle are in its lineage, as far as this state folder knows."""
    from dpserve.training.inputs.lineage import RecordRegistry
    from dpserve.training.inputs.records import Declaration, Records, Units
    from dpserve.training.kinds.loading import load_model

    records, certificate = RecordRegistry(options.state_folder()), load_model(bundle).certificate
    if others.units is None or not records.folder.exists():  # rows are known as a whole, and these are columns of them
        return
    names, feature_map = certificate.feature_names, certificate.feature_map
    declared = Declaration(names, tuple(feature_map.lower), tuple(feature_map.upper), certificate.classes)
    units = Units("", others.of, np.unique(others.units).view(np.uint8).reshape(-1, 16))
    digests = records.digests(Records(others.X, others.y, declared, (), units))
    shared = records.among(digests).get(certificate.lineage)
    if shared is not None:
        errors.print(
            f"Warning: {shared.units:,} units of the non-members are in the lineage "
            f"{certificate.lineage!r}: those that this model was trained on are members, and hide what it tells",
            highlight=False,
            soft_wrap=True,
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
