"""Run the simulations of a sweep or a study on a Ray cluster."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final

from lengthwise.errors import InputError
from lengthwise.simulator.tasks import Task, Workers, code_version, run_task
from lengthwise.version import install_line

_CONNECT_TIMEOUT_S: Final = 5.0


def on_ray(address: str) -> Workers:
    """Workers on the cluster at `address` (`auto`: the one this machine belongs to); its nodes need the same code.

    A task whose node dies is run again on another one.
    """
    try:
        import ray
    except ImportError:
        hint = f"install it with {install_line('ray')}, or leave --ray out"
        raise InputError("Ray is not installed", field="ray", hint=hint) from None

    def run(tasks: Sequence[Task]) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            if not ray.is_initialized():  # it stays connected until this process ends: a sweep runs two batches
                _check_reachable(address)
                ray.init(address=address)
        except (OSError, RuntimeError, ValueError) as error:
            hint = "start a cluster there (ray start --head), or leave --ray out"
            raise InputError(f"no Ray cluster at {address}", field="ray", hint=hint) from error
        remote = ray.remote(_run_with_version)
        pending = {remote.remote(task): number for number, task in enumerate(tasks)}
        while pending:
            (done,), _ = ray.wait(list(pending), num_returns=1)
            version, result = ray.get(done)
            if version != code_version():  # the result would be cached under this code
                raise InputError(
                    f"a node has lengthwise {version}, not {code_version()}",
                    source=address,
                    hint="install the same version on every node",
                )
            yield pending.pop(done), result

    return run


def _run_with_version(task: Task) -> tuple[str, dict[str, Any]]:
    return code_version(), run_task(task)


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
