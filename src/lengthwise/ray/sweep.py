"""Run the tasks of a sweep on a Ray cluster."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final

from lengthwise.errors import InputError
from lengthwise.simulator.tasks import Task, Workers, run_task

_CONNECT_TIMEOUT_S: Final = 5.0


def on_ray(address: str) -> Workers:
    """Workers on the cluster at `address` (`auto`: the one this machine belongs to); its nodes need this package."""
    try:
        import ray
    except ImportError:
        hint = "install it with pip install 'lengthwise[ray]', or leave --ray out"
        raise InputError("Ray is not installed", field="ray", hint=hint) from None

    def run(tasks: Sequence[Task]) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            if not ray.is_initialized():  # it stays connected until this process ends: a sweep runs two batches
                _check_reachable(address)
                ray.init(address=address)
        except (OSError, RuntimeError, ValueError) as error:
            hint = "start a cluster there (ray start --head), or leave --ray out"
            raise InputError(f"no Ray cluster at {address}", field="ray", hint=hint) from error
        remote = ray.remote(run_task)
        pending = {remote.remote(task): number for number, task in enumerate(tasks)}
        while pending:
            (done,), _ = ray.wait(list(pending), num_returns=1)
            yield pending.pop(done), ray.get(done)

    return run


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
