"""`python -m research.audit_table`: which audit convicts which planted fault, all of them run.

The faults are those of `research.planted_faults`. Each is in the running code while six audits look for it, on the
training that it shows in, or on a head of the same records whose services answer in this process. With --write the
table goes into docs/auditors-guide.md.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer

from dpserve.audit.distinguishing.mechanism import judge, observe_noise
from dpserve.audit.distinguishing.neighbours import neighbours
from dpserve.audit.distinguishing.service import observe_services
from dpserve.audit.in_process import BundleEndpoint, Lineage, rehearsal_key
from dpserve.audit.membership.asking import AnswerJournal
from dpserve.audit.membership.charges import ask_again, overdraw
from dpserve.audit.membership.near_copies import near_copies_to_ask
from dpserve.audit.release import audit_release
from dpserve.audit.replay import audit_training, known_before, trained_by
from dpserve.audit.reports import ReportTable
from dpserve.audit.sampler import audit_sampler
from dpserve.mechanisms.registry import priced
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.errors import ClaimRefuted
from dpserve.training.exact.questions import MeteredModel
from dpserve.training.features.maps import Identity
from dpserve.training.fit import fit
from dpserve.training.inputs.records import Records
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.registry import kind_for
from research.commands import finished_pieces, program, run
from research.noise_faults import CONVICTS, Asked
from research.planted_faults import FAULTS, PlantedFault, made_records
from research.printing import print_tables

PAGE = Path(__file__).parents[1] / "docs" / "auditors-guide.md"
TITLE = "Which audit convicts which fault"
CONVICTS_WORD, ACQUITS_WORD, NOT_RUN = "**convicts**", "no", "-"
_MECHANISM, _PRICE, _DELTA = "gaussian", "noise-multiplier:1", 1e-5
_CLASSES, _TRIALS, _CANARIES, _BUDGET = 3, 2000, 1000, 500
_FALSE_ALARM = 1e-8

app = program()


def by_replay(fault: PlantedFault) -> bool:
    """Return whether `audit training` convicts a training with the fault."""
    with TemporaryDirectory() as folder:
        records = made_records(fault.records, fault.people)
        train = trained_by(fault.request(), Path(folder), known_before(records))
        return bool(audit_training(train, records, trials=2).broken)


def by_mechanism(fault: PlantedFault) -> bool:
    """Return whether `audit mechanism` convicts the mechanism that answers have by default."""
    del fault  # it is in the code
    mechanism = priced(_MECHANISM, _PRICE, _CLASSES)
    randomness = SeededRandomness(1, ("audit table",))
    inside, outside, noise = observe_noise(mechanism, mechanism.worst_neighbours(_CLASSES), _TRIALS, randomness)
    return judge(mechanism, inside, outside, delta=_DELTA, noise=noise).convicted


def by_service(fault: PlantedFault) -> bool | None:
    """Return whether `audit service` convicts services of two heads; None where models have no noise to be asked."""
    if kind_for(fault.kind).limitation("audit"):
        return None
    pair, rng = neighbours("poisoned", made_records(), _head, np.random.default_rng(1)), np.random.default_rng(2)
    services = [Asked(_endpoint(head, place)) for place, head in enumerate((pair.head_in, pair.head_out))]
    with finished_pieces(None) as store:
        mechanism, inside, outside, noise = observe_services(
            services[0], services[1], pair, pair.row[None], _TRIALS, rng, store, seed=1
        )
    return judge(mechanism, inside, outside, delta=_DELTA, noise=noise).convicted


def by_attack(fault: PlantedFault) -> bool | None:
    """Return whether `attack` convicts by the noise of near-copies, or by what answers were charged."""
    if kind_for(fault.kind).limitation("audit"):
        return None
    endpoint = _endpoint(_head(made_records()), 3)
    journal = AnswerJournal(None, endpoint.model())
    noise = near_copies_to_ask(endpoint, endpoint.model(), journal, 1).ask(endpoint, journal)
    row = np.full(4, 0.5)
    again = ask_again(endpoint, row, endpoint.answers(row[None])[0], times=100)
    return noise.p_value <= CONVICTS or again.averaging_is_free or bool(overdraw(endpoint))


def by_canaries(fault: PlantedFault) -> bool | None:
    """Return whether canaries of the training's own run refute it; None where its kind takes none."""
    if kind_for(fault.kind).limitation("canaries", fault.kind):
        return None
    request = fault.request()
    request = request.replaced(kind=fault.kind.replaced(canaries=_CANARIES))
    records, randomness = made_records(fault.records, fault.people), SeededRandomness(1, ("audit table",))
    with TemporaryDirectory() as folder:
        out = Path(folder) / "bundle"
        try:
            fit(records, request, out, state=Path(folder) / "state", randomness=randomness)
        except ClaimRefuted:
            return True
        return audit_release(load_model(out)).verdict.convicts


def by_sampler(fault: PlantedFault) -> bool:
    """Return whether `audit sampler` convicts all that draws."""
    del fault
    return bool(audit_sampler(256, 100_000, 100, _CLASSES, _FALSE_ALARM, lambda *_: None).faults)


AUDITS: Mapping[str, Callable[[PlantedFault], bool | None]] = {
    "`audit training`": by_replay,
    "`audit mechanism`": by_mechanism,
    "`audit service`": by_service,
    "`attack`: noise, charges": by_attack,
    "`audit release`": by_canaries,
    "`audit sampler`": by_sampler,
}


def _head(records: Records) -> MeteredModel:
    declared = records.declaration
    feature_map = Identity(lower=declared.lower, upper=declared.upper, clip_norm=1.0, bias=0.1)
    return train_head(records, Recipe("audited", feature_map, 10.0), "audited")


def _endpoint(head: MeteredModel, number: int) -> BundleEndpoint:
    mechanism = priced(_MECHANISM, _PRICE, _CLASSES)
    lineage = Lineage(limit=(_BUDGET if number > 1 else 2 * _TRIALS) * mechanism.cost.picorho)
    return BundleEndpoint(head, mechanism, rehearsal_key(number), lineage=lineage)


def tabulate(faults: Mapping[str, PlantedFault] = FAULTS) -> ReportTable:
    """Return what each audit says of each fault, and of trainings without one."""
    words = {True: CONVICTS_WORD, False: ACQUITS_WORD, None: NOT_RUN}
    rows = []
    for name, fault in faults.items():
        with fault.planted():
            rows.append((name, *(words[convicts(fault)] for convicts in AUDITS.values())))
    return ReportTable(TITLE, ("fault", *AUDITS), tuple(rows))


def as_markdown(table: ReportTable) -> str:
    """Return the table as the page has it."""
    lines = [table.columns, ("---",) * len(table.columns), *table.rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown_in(page: str) -> str:
    """Return the table of a page. Raises ValueError where there is none."""
    found = re.search(r"^\| fault \|.*\n(?:\|.*\n)+", page, re.MULTILINE)
    if found is None:
        raise ValueError(f"{PAGE.name} has no table of faults")
    return found[0]


@app.command()
def faults(
    write: Annotated[bool, typer.Option("--write", help="Put the table into docs/auditors-guide.md.")] = False,
) -> None:
    """Print which audit convicts which planted fault."""
    table = tabulate()
    print_tables([table])
    if write:
        page = PAGE.read_text("utf-8")
        PAGE.write_text(page.replace(shown_in(page), as_markdown(table)), "utf-8")


if __name__ == "__main__":
    run(app)
