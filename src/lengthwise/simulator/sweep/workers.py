"""Where the pieces of a sweep are computed: in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import socket
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, Final

from lengthwise.errors import InputError
from lengthwise.simulator.sweep.task import run_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lengthwise.simulator.sweep.task import Task

    Workers = Callable[[Sequence[Task]], Iterator[tuple[int, dict[str, Any]]]]

_KNOCK_S: Final = 5.0


def in_processes(jobs: int) -> Workers:
    """So many processes; with one, this process itself."""
    if jobs < 1:
        raise InputError(f"{jobs} processes", field="jobs", hint="give at least 1")

    def run(tasks: Sequence[Task]) -> Iterator[tuple[int, dict[str, Any]]]:
        if jobs == 1 or len(tasks) == 1:
            for number, task in enumerate(tasks):
                yield number, run_task(task)
            return
        # Spawned, not forked: a fork of a process with threads (Arrow's, Numba's) may hang.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context) as pool:
            waiting = {pool.submit(run_task, task): number for number, task in enumerate(tasks)}
            try:
                for done in as_completed(waiting):
                    yield waiting[done], done.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    return run


def on_ray(address: str) -> Workers:
    """The cluster at an address, `auto` for the one this machine belongs to; its machines need this package."""
    try:
        import ray
    except ImportError:
        hint = "install it with pip install 'lengthwise[ray]', or leave --ray out"
        raise InputError("Ray is not installed", field="ray", hint=hint) from None

    def run(tasks: Sequence[Task]) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            if not ray.is_initialized():  # it stays so until this process ends: a sweep comes in two waves
                _knock(address)
                ray.init(address=address)
        except (OSError, RuntimeError, ValueError) as error:
            hint = "start a cluster there (ray start --head), or leave --ray out"
            raise InputError(f"no Ray cluster at {address}", field="ray", hint=hint) from error
        remote = ray.remote(run_task)
        waiting = {remote.remote(task): number for number, task in enumerate(tasks)}
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            yield waiting.pop(done), ray.get(done)

    return run


def _knock(address: str) -> None:
    """An OSError where nobody listens at HOST:PORT; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()
