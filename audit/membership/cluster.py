"""Shadow models on a Ray cluster, where one machine is too small: every worker trains a share of the same draws.

A model's records and first weights follow from the seed and the model's number, so that the cluster's models are those
that one machine would train, up to the rounding of sums.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

from audit.membership.shadow_models import Draws, Pool, ShadowModels, ShadowRecipe, train_shadow_models
from training.errors import extra

_PATIENCE = 5.0
"""Seconds to wait for a connection; a cluster may take twice as long to say that it is well."""


def train_on_ray(address: str) -> Callable[[Pool, ShadowRecipe, Draws, Callable[[float], None]], ShadowModels]:
    """Return a trainer on the cluster at this address, one share of the models for each of its processors.

    Connects before it returns, so that a cluster that does not answer is known before anything is paid for.

    address: as Ray takes it, "auto" or host:port; "local" starts one on this machine. Raises MissingExtra without Ray
    and ConnectionError, within seconds, where no cluster answers.
    """
    with extra("ray", "a Ray cluster"):
        import ray
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what is trained on whose data is nobody else's business
    if not ray.is_initialized():
        _check(address)
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)

    def train(pool: Pool, recipe: ShadowRecipe, draws: Draws, on_share: Callable[[float], None]) -> ShadowModels:
        shared = ray.put((pool.X, pool.y))
        remote = ray.remote(num_cpus=1)(_share)
        resources = ray.cluster_resources()  # type: ignore[no-untyped-call,unused-ignore]
        parts = draws.shares(max(1, int(resources.get("CPU", 1))))
        waiting = [remote.remote(shared, recipe, part) for part in parts]
        place = {reference: index for index, reference in enumerate(waiting)}
        done: list[Any] = [None] * len(parts)
        while waiting:
            (ready, *_), waiting = ray.wait(waiting)
            done[place[ready]] = ray.get(ready)
            on_share(sum(one is not None for one in done) / len(parts))
        return reduce(add, (ShadowModels(*one) for one in done))

    return train


def _check(address: str) -> None:
    """Raise ConnectionError where nothing at host:port says that it is a cluster: `ray.init` would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:
        return
    said = f"no Ray cluster answers at {address}: start one with 'ray start --head', or give its address to --ray"
    try:
        socket.create_connection((host, int(port)), _PATIENCE).close()
        if not address.startswith("ray://"):
            health = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
            subprocess.run(health, check=True, capture_output=True, timeout=2 * _PATIENCE)  # noqa: S603
    except (OSError, ValueError, OverflowError, subprocess.SubprocessError) as error:
        raise ConnectionError(said) from error


def _share(shared: Any, recipe: ShadowRecipe, draws: Draws) -> tuple[Any, Any, Any]:
    trained = train_shadow_models(Pool(*shared), recipe, draws)
    return trained.members, trained.held_out, trained.logits
