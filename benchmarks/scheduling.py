"""CPU time that the plug-in adds to an engine's step: `python -m benchmarks.scheduling [--waiting 1000]`.

Schedulers of vLLM without a model (as the tests build them), the stock one and ours under each policy, side by side in
one process: always 1,000 waiting requests, blocks of steps in turn. The figure is the CPU time of the scheduling thread
in add_request, schedule and update_from_output. Answers have as many tokens as there are slots, whatever their
prediction: one request arrives and one finishes per step, in every order. With few KV blocks requests are preempted
too: `--slots 64 --kv-blocks 300`. `fast` predicts lengths in another thread, which is not counted. In microseconds; the
mean of the fastest quarter of blocks, because other processes on the machine only make blocks slower.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from benchmarks import options
from lengthwise.policies import POLICIES
from lengthwise.vllm.scheduler import LengthwiseScheduler
from lengthwise.vllm.smollm2 import model_folder
from tests.vllm.scheduling import Run, make_request, make_scheduler, step, tiny_model

if TYPE_CHECKING:
    from vllm.v1.request import Request

TARGET_US = 200.0  # for the policies in NAMED
NAMED = ("lengthwise", "sjf", "tie")
POLICY_NAMES = (*NAMED, *(name for name in POLICIES if name not in NAMED))
BLOCK = 25  # steps


@dataclass
class Host:
    """A scheduler with a constant number of waiting requests."""

    scheduler: Any
    waiting: int
    slots: int
    added: int = 0
    step_us: list[float] = field(default_factory=list)

    def fill(self) -> None:
        """Add requests up to the number that should wait."""
        while len(self.scheduler.waiting) < self.waiting:
            self.scheduler.add_request(self.request())

    def settle(self) -> None:
        """Wait for the predictions of the first thousand requests, which are not part of the measurement."""
        if isinstance(self.scheduler, LengthwiseScheduler):
            while (
                counts := self.scheduler.predictions.counts
            ).asked > counts.answered + counts.failed + counts.dropped:
                time.sleep(0.01)

    def block(self) -> None:
        """Run a block of steps and record their CPU time."""
        start = time.thread_time_ns()
        requests = self.prepared()
        making = time.thread_time_ns() - start
        for _ in range(BLOCK):
            while requests and len(self.scheduler.waiting) < self.waiting:
                self.scheduler.add_request(requests.pop())
            step(self.scheduler, Run())
        self.step_us.append((time.thread_time_ns() - start - making) / BLOCK / 1e3)

    def prepared(self) -> list[Request]:
        """Return requests for a block; making them is the API server's work and is not counted."""
        return [self.request() for _ in range(4 * BLOCK)][::-1]

    def request(self) -> Request:
        """Return the next request, with a prompt that no other has."""
        self.added += 1
        return make_request(str(self.added), 24, self.slots, arrival=float(self.added))


def measure(
    waiting: int, slots: int, blocks: int, policies: tuple[str, ...], kv_blocks: int = 20_000
) -> dict[str, list[float]]:
    """Return the CPU time of a step under each policy and of the stock scheduler, by block."""
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(Path(folder))
        limits: dict[str, Any] = {"slots": slots, "budget": 2048, "blocks": kv_blocks, "tokenizer": model_folder()}
        hosts = {"stock": Host(make_scheduler(AsyncScheduler, model, **limits), waiting, slots)}
        for policy in policies:
            ours = make_scheduler(LengthwiseScheduler, model, policy=policy, measuring={"state": "off"}, **limits)
            hosts[policy] = Host(ours, waiting, slots)
    for host in hosts.values():
        host.fill()
        host.settle()
        host.block()
        host.step_us.clear()
    for _ in range(blocks):
        for host in hosts.values():
            host.block()
    for name, host in hosts.items():
        if name != "stock":
            host.scheduler.predictions.close()
    return {name: host.step_us for name, host in hosts.items()}


def fastest(step_us: list[float]) -> float:
    """Return the mean of the fastest quarter."""
    return statistics.fmean(sorted(step_us)[: max(1, len(step_us) // 4)])


def main() -> None:
    asked = options(__doc__, waiting=1000, slots=16, blocks=40, kv_blocks=20_000, policy=POLICY_NAMES)
    found = measure(asked.waiting, asked.slots, asked.blocks, asked.policy, asked.kv_blocks)
    figures = {name: fastest(step_us) for name, step_us in found.items()}
    stock = figures.pop("stock")
    print(f"{asked.waiting:,} waiting, {asked.slots} slots; a step of the stock scheduler: {stock:.0f} us of CPU time")
    for name, took in figures.items():
        target = f", target {TARGET_US:.0f}" if name in NAMED else ""
        print(f"{name:12} adds {took - stock:6.0f} us{target}")


if __name__ == "__main__":
    main()
