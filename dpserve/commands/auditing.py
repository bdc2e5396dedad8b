"""`dpserve audit`: lower bounds from attacks, compared with what is claimed. Exit status 3 when a claim is refuted."""

from contextlib import nullcontext
from dataclasses import asdict
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpserve.commands import options, reporting
from dpserve.commands.command import Group, Options, option
from dpserve.commands.console import counting, shares
from dpserve.commands.reporting import Confidences, ReportOptions, refuse, stored
from training.errors import extra

if TYPE_CHECKING:
    import numpy as np

    from dpserve.local_services import ServicePair
    from training.data.records import Records
    from training.published.bundle import PublishedNetwork

RUNNING = "Two running services, in place of two that are trained"
_PIECE = 10_000
_DEFAULT_DELTA = 1e-5
_BATCH = 1_000_000
_GAUSSIAN_SCALES = (2**8, 2**9, 2**10, 2**12)
"""Where none is asked for: some that releases use, and the digits of the wide Gaussian. 2^16 takes minutes."""
_LAPLACE_SCALES = (2**16, 2**24)
_SELECTION_EPSILON, _SELECTED_AMONG = 1.0, 10
_FORKS, _FORKED_WORDS = 8, 100_000
_QUESTIONS = 2_000
_TIMED = {"gaussian": "noise-multiplier:4"} | dict.fromkeys(("laplace", "label", "selected-neuron"), "epsilon:1")
"""The mechanisms whose releases are timed, and their prices."""
_MULTIPLIERS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

app = Group(name="audit")


@app.callback()
def _audits() -> None:
    """Attack a mechanism or a service and bound what it tells from below. Exit status 3 when its claim is refuted."""


@app.command("mechanism")
def mechanism(
    *,
    name: Annotated[
        str,
        typer.Argument(
            help="gaussian, laplace, label, selected-neuron or published.", autocompletion=options.mechanism_names
        ),
    ],
    classes: Annotated[int, typer.Option("--classes", help="Number of classes.")],
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="The claimed epsilon of one release; for Gaussian at --delta.")
    ] = None,
    price: Annotated[
        str | None, typer.Option("--price", help="The claim as a price instead, as rho:0.005 or noise-multiplier:20.")
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            "--delta",
            help="The delta of the epsilon. [default: 0 where there is a pure epsilon, else 1e-5]",
            show_default=False,
        ),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=10, help="Answers in each world.")] = 10_000,
    sure: Confidences,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            min=0,
            help="Draw all noise from this seed, for a result that repeats. [default: the operating system's "
            "randomness, as a service]",
            show_default=False,
        ),
    ] = None,
    resume: reporting.Resume = None,
    report: ReportOptions,
) -> None:
    """Ask a mechanism about two rows of logits that are as far apart as it allows, and tell them apart."""
    import numpy as np

    from audit import presentation
    from audit.distinguishing.likelihood import worst_case
    from audit.distinguishing.mechanism import judge, observe
    from audit.pieces import kept_scores
    from mechanisms.mechanism import priced
    from mechanisms.randomness import SystemRandomness
    from mechanisms.seeded import SeededRandomness

    if (epsilon is None) == (price is None):
        raise ValueError("state the claim: either --epsilon E or --price PRICE")
    if resume is not None and seed is None:
        raise ValueError("--resume needs a --seed: pieces without one would be other draws than those of this audit")
    if price is None:
        at = f"@{_DEFAULT_DELTA if delta is None else delta!r}" if name == "gaussian" else ""
        price = f"epsilon:{Decimal(repr(epsilon))}{at}"
    chosen = priced(name, price, classes)
    if delta is None:
        delta = 0.0 if np.isfinite(chosen.cost.pure_epsilon) else _DEFAULT_DELTA
    found, worlds = [], worst_case(chosen, classes)
    with stored(resume) as store, counting(f"asking {name}", trials) as progress:
        for number, start in enumerate(range(0, trials, _PIECE)):
            # A piece's noise follows from the seed and the piece's number.
            count, purpose = min(_PIECE, trials - start), ("audit mechanism", name, price, str(classes), str(number))
            randomness = SystemRandomness() if seed is None else SeededRandomness(seed, purpose)
            piece = {
                "name": f"audit-{name}",
                "price": price,
                "classes": classes,
                "seed": seed,
                "piece": number,
                "count": count,
            }
            found.append(kept_scores(store, piece, partial(observe, chosen, worlds, count, randomness)))
            progress(count)
    scores_in, scores_out = (np.concatenate(pieces) for pieces in zip(*found, strict=True))
    finding = judge(chosen, scores_in, scores_out, delta=delta, **sure.model_dump())
    report.show(
        presentation.of_mechanism(
            finding,
            scores_in,
            scores_out,
            f"Audit of the mechanism {name!r} ({chosen.status}) with {classes} classes at {price}",
            {"classes": classes, "price": price, "trials": trials, "seed": seed},
            "The two worlds' logits are exactly as far apart as the sensitivity allows.",
        ),
        "audit-mechanism",
    )


class OwnServices(Options):
    """Two models to train on the digits and to serve."""

    kind: str = option(
        "mislabelled", "The record that makes the difference: natural, outlier or mislabelled.", "--record"
    )
    mechanism: str = option("gaussian", "How the two services make answers private.", complete=options.mechanism_names)
    price: str = option("noise-multiplier:1", "The price of one row, as of `dpserve serve`.")
    lam: float = option(10.0, "Lambda of the two models.")


class RunningServices(Options):
    """Two running services, with the record and without it."""

    url_in: str | None = option(None, "A running service of the model with it.", panel=RUNNING)
    url_out: str | None = option(None, "A running service of the model without it.", panel=RUNNING)
    bundle_in: Path | None = option(None, "The bundle of the first.", panel=RUNNING)
    bundle_out: Path | None = option(None, "The bundle of the second.", panel=RUNNING)
    key_in: str | None = option(None, "An API key of the first service.", variable="DPSERVE_KEY_IN", panel=RUNNING)
    key_out: str | None = option(None, "An API key of the second service.", variable="DPSERVE_KEY_OUT", panel=RUNNING)

    def pair(self, rng: "np.random.Generator") -> "ServicePair | None":
        """Return the services, or None where no option names them. Raises BadParameter for some of the options."""
        from dpserve.local_services import running_services

        match tuple(self.model_dump().values()):
            case (None, None, None, None, None, None):
                return None
            case (str(one), str(other), Path() as first, Path() as second, str(key), str(other_key)):
                return running_services((one, other), (first, second), (key, other_key), rng)
        raise typer.BadParameter("running services need all of --url-in, --bundle-in, --key-in and the same with -out")


@app.command("service")
def service(
    *,
    context: typer.Context,
    own: OwnServices,
    running: RunningServices,
    delta: Annotated[float, typer.Option("--delta", help="The delta of the epsilon; 0 for a pure epsilon.")] = 1e-5,
    trials: Annotated[int, typer.Option("--trials", min=10, help="Rows asked of each service.")] = 2000,
    sure: Confidences,
    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            min=0,
            help="Seed for the record, the rows and their order; a service's noise cannot be seeded. See --resume.",
        ),
    ] = 0,
    resume: reporting.Resume = None,
    report: ReportOptions,
) -> None:
    """Ask two services of neighbouring models over HTTP and tell them apart.

    Without URLs: train both models on the digits, start a service of each, and stop them at the end. With URLs: audit
    two services of yours, whose keys pay for the rows. With --resume the answers are kept, so that the same audit again
    finds the same and costs nothing more.
    """
    import numpy as np

    from audit import presentation
    from audit.distinguishing.mechanism import judge
    from audit.distinguishing.service import observe_services
    from audit.pieces import kept_scores
    from dpserve.client import Client
    from dpserve.local_services import own_services

    rng = np.random.default_rng(seed)
    found = running.pair(rng)
    if found is not None:
        refuse(context, "about services that run", *OwnServices.model_fields)
    with (
        nullcontext(found) if found else own_services(own.kind, own.mechanism, own.price, own.lam, trials, rng) as pair,
        stored(resume) as store,
        Client(pair.urls[0], pair.keys[0]) as first,
        Client(pair.urls[1], pair.keys[1]) as second,
        counting("asking both services", trials) as progress,
    ):
        # Kept scores are bound to both models, the price, the rows and the seed.
        chosen, scores_in, scores_out = observe_services(
            first,
            second,
            pair.models,
            pair.row,
            trials,
            rng,
            kept=lambda piece, ask: kept_scores(store, {"name": "audit-service", "seed": seed, **piece}, ask),
            progress=progress,
        )
    finding = judge(chosen, scores_in, scores_out, delta=delta, **sure.model_dump())
    movement = float(pair.models.movement(pair.row)[0])
    shown = presentation.of_mechanism(
        finding,
        scores_in,
        scores_out,
        f"Audit of two services by the mechanism {chosen.name!r} ({chosen.status})",
        {"record": pair.models.kind, "trials": trials, "seed": seed, "movement_over_sensitivity": movement},
        pair.note,
        f"At the strongest row that was found the logits move by {movement:.4g} of their sensitivity.",
    )
    report.show(shown, "audit-service")


@app.command("sampler")
def sampler(
    *,
    scale: Annotated[
        int | None,
        typer.Option(
            "--scale",
            help="Of one Gaussian table: a power of two from 256 to 65536. [default: four of them]",
            show_default=False,
        ),
    ] = None,
    draws: Annotated[int, typer.Option("--draws", min=2000, help="For the chi-square tests of each law.")] = 10_000_000,
    releases: Annotated[int, typer.Option("--releases", min=100, help="Answers to time for each mechanism.")] = 20_000,
    classes: Annotated[int, typer.Option("--classes", help="C of the timed rows.")] = 10,
    false_alarm: Annotated[
        float, typer.Option("--false-alarm", help="With what probability a right sampler may be convicted.")
    ] = 1e-6,
    report: ReportOptions,
) -> None:
    """Audit the sampler of all noise: its tables exactly, its draws, its forks, and the time that it takes."""
    from audit import presentation
    from audit import sampler as audited
    from mechanisms.mechanism import priced
    from mechanisms.randomness import NoiseKey, SystemRandomness
    from mechanisms.wide_gaussian import SCALE as WIDE_SCALE

    if not 0 < false_alarm < 1:
        raise ValueError(f"the false-alarm rate lies between 0 and 1, not {false_alarm}")
    randomness, noise_key = SystemRandomness(), NoiseKey.fresh()
    # Of neighbouring questions, as many words each as a row's answer takes.
    keyed = audited.Questions(noise_key, b"audit sampler", 2 * classes)
    scales = _GAUSSIAN_SCALES if scale is None else (scale,)
    laws: list[tuple[audited.LawName, int]] = [("gaussian", one) for one in scales]
    laws += [("wide gaussian", WIDE_SCALE), *(("laplace", one) for one in _LAPLACE_SCALES)]
    batches, size = max(1, draws // _BATCH), min(draws, _BATCH)
    distances, tests, times = {}, [], {}
    steps = len(scales) + len(_LAPLACE_SCALES) + (len(laws) + 2) * batches + 2 + len(_TIMED)
    with counting("auditing the sampler", steps) as progress:
        for one in scales:
            distances[f"gaussian, scale {one}"] = audited.gaussian_table_distance(one)
            progress(1)
        for one in _LAPLACE_SCALES:
            distances[f"laplace, scale {one}"] = audited.laplace_table_distance(one)
            progress(1)
        for law, of in laws:
            for _ in range(batches):
                tests += [(f"{law}, scale {of}", found) for found in audited.chi_squares(law, of, size, randomness)]
                progress(1)
        for _ in range(batches):
            found_of_keyed = audited.chi_squares("gaussian", scales[0], size, keyed)
            tests += [(f"gaussian, scale {scales[0]}, of questions", found) for found in found_of_keyed]
            progress(1)
        for batch in range(batches):
            selected = audited.selections(_SELECTION_EPSILON, _SELECTED_AMONG, max(size, 10_000), randomness, batch)
            tests.append(("label, selected-neuron", selected))
            progress(1)
        repeated = audited.repeated_words(randomness, _FORKS, _FORKED_WORDS)
        progress(1)
        changed = audited.changed_words(noise_key, b"audit sampler", _QUESTIONS, 2 * classes, 0)
        progress(1)
        for name, price in _TIMED.items():
            times[name] = audited.timings_that_count(priced(name, price, classes), classes, releases, randomness)
            progress(1)
    report.show(
        presentation.of_sampler(
            distances,
            tests,
            false_alarm,
            repeated,
            changed,
            times,
            f"{_FORKS} processes forked from this one drew {_FORKED_WORDS} words each from one source: "
            f"{repeated} came twice.",
            f"{_QUESTIONS} questions were asked under one noise key together, and each alone in another process: "
            f"{changed} had other noise there.",
        ),
        "audit-sampler",
    )


@app.command("sensitivity")
def sensitivity(
    *,
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="certified, or published.")],
    lam: Annotated[float, typer.Option("--lam", help="certified: Lambda.")] = 10.0,
    neighbours: Annotated[
        int, typer.Option("--neighbours", min=1, help="published: how many networks to train again, twice.")
    ] = 3,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the records that make the difference.")] = 0,
    report: ReportOptions,
) -> None:
    """Train again without a record of the digits, and hold how far the model moved against what is claimed."""
    from audit import presentation
    from audit.distinguishing.neighbours import KINDS, of_certified_head, of_published_network
    from dpserve.local_services import trained
    from training.data.digits import load_digits

    records = load_digits().train
    if model == "certified":
        refuse(context, "of a certified model", "neighbours")
        with counting("training neighbours", len(KINDS)) as progress:
            moved = of_certified_head(records, lambda some: trained(some, lam), seed, progress)
        report.show(presentation.of_sensitivity(model, {"three kinds of record": moved}), "audit-sensitivity")
    if model != "published":
        raise ValueError(f"a model is certified or published, not {model!r}")
    refuse(context, "of a published model", "lam")
    with extra("torch", "training networks"):
        from training.published.train import train_published

    def train(some: "Records") -> "PublishedNetwork":
        return train_published(some, "digits", "audit")

    with counting("training networks", 2 * neighbours) as progress:
        found = {
            how: of_published_network(records, train, neighbours, seed, replaced=replaced, progress=progress)
            for how, replaced in (("a record left out", False), ("a record replaced, same batches", True))
        }
    report.show(presentation.of_sensitivity(model, found), "audit-sensitivity")


@app.command("training")
def training(
    *,
    epsilon: Annotated[float, typer.Option("--epsilon", help="What a run claims at delta = 1e-5.")] = 8.0,
    canary: Annotated[str, typer.Option("--canary", help="dirac, blank or mislabelled.")] = "dirac",
    runs: Annotated[
        int | None,
        typer.Option("--runs", min=1, help="Runs whose steps are observed. [default: 5]", show_default=False),
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=10, help="Of a run.")] = None,
    sure: Confidences,
    seed: reporting.Seed = 0,
    resume: reporting.Resume = None,
    report: ReportOptions,
) -> None:
    """Train with DP-SGD on the digits, watch every step for a canary, and hold what is seen against what is claimed."""
    from audit import presentation
    from audit.white_box import bounds, experiments

    setting = experiments.scaled(experiments.DIGITS, canary=canary, runs=runs, steps=steps)
    material = experiments.digits(setting, seed)
    with stored(resume) as store, shares(f"training on {setting.dataset}") as progress:
        measured = experiments.measure(setting, epsilon, material, store, seed, progress)
    report.show(
        presentation.of_steps(
            bounds.judge(measured, **sure.model_dump()),
            measured,
            f"White-box audit of DP-SGD on {setting.dataset}, with a {canary} canary",
            {**asdict(setting), "seed": seed, "epsilon": epsilon},
            material.source,
        ),
        "audit-training",
    )


@app.command("region")
def region(
    *,
    name: Annotated[str, typer.Argument(help="A mechanism.")],
    classes: Annotated[int, typer.Option("--classes", help="Number of classes.")] = 10,
    noise_multiplier: Annotated[
        list[float] | None, typer.Option("--noise-multiplier", help="One, or several by naming it again.")
    ] = None,
    releases: Annotated[int, typer.Option("--releases", min=1, help="Judged together.")] = 1,
    trials: Annotated[int, typer.Option("--trials", min=10, help="In each world.")] = 10_000,
    delta: Annotated[float, typer.Option("--delta", help="The delta of the epsilon.")] = 1e-5,
    sure: Confidences,
    seed: reporting.Seed = 0,
    resume: reporting.Resume = None,
    report: ReportOptions,
) -> None:
    """Draw the best lower bound from attacks and the best upper bound from analyses over noise multipliers."""
    from audit import presentation
    from audit import region as regions
    from audit.pieces import kept_scores
    from mechanisms.mechanism import names
    from mechanisms.seeded import SeededRandomness

    if name not in names():
        raise ValueError(f"a region can be drawn of {', '.join(names())}, not of {name!r}")
    points, multipliers = [], noise_multiplier or _MULTIPLIERS
    with stored(resume) as store, counting(f"asking {name}", len(multipliers)) as progress:
        for noise in multipliers:
            chosen = regions.mechanism_at(name, classes, noise)
            piece: dict[str, Any] = {"name": f"region-{name}", "classes": classes, "noise_multiplier": noise}
            piece |= {"releases": releases, "trials": trials, "seed": seed}
            randomness = SeededRandomness(seed, ("region", name, f"{noise!r}"))
            observe = partial(regions.observe_releases, chosen, classes, releases, trials, randomness)
            points.append(
                regions.point_of(
                    chosen,
                    noise,
                    releases,
                    kept_scores(store, piece, observe),
                    delta=delta,
                    points=len(multipliers),
                    **sure.model_dump(),
                )
            )
            progress(1)
    setting = {"mechanism": name, "classes": classes, "releases": releases, "trials": trials, "seed": seed}
    title = f"The region of privacy of {name!r}: {releases} releases of {classes} classes"
    note = "A noise multiplier stands for the price rho = 1/(2 multiplier^2) of a row, whatever the mechanism."
    report.show(presentation.of_region(title, points, delta, setting, note), "audit-region")
