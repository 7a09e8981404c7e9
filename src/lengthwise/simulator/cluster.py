"""Many engines in virtual time: requests arrive, are routed, are served to the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lengthwise.errors import InputError
from lengthwise.policies import Job, Policy, make_policy
from lengthwise.simulator.engine import Engine
from lengthwise.simulator.oracles import find_predictor
from lengthwise.simulator.outcome import Ledger, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lengthwise.simulator.fleet import Fleet
    from lengthwise.workloads import Workload

_REPORT_EVERY = 512  # arrivals
_DRAIN_SLICE_S = 60.0  # virtual seconds between reports of progress once all have arrived


class Router(Protocol):
    """Chooses an engine, by its place in the fleet. Sees the job and the time, never an engine's inside."""

    def choose(self, job: Job, now: float) -> int:
        """Return the engine for this job."""


class RoundRobin:
    """One after the other, whatever they have to do."""

    def __init__(self, fleet: Fleet) -> None:
        self._engines = len(fleet)
        self._next = 0

    def choose(self, job: Job, now: float) -> int:
        """The next engine in the circle."""
        del job, now
        chosen = self._next
        self._next = (chosen + 1) % self._engines
        return chosen


def simulate(
    workload: Workload,
    fleet: Fleet,
    policy: Policy | str = "fcfs",
    *,
    router: Callable[[Fleet], Router] = RoundRobin,
    predictor: str = "oracle",
    jump: bool = True,
    on_progress: Callable[[float], None] | None = None,
) -> Outcome:
    """Serve the workload to the last request.

    `router` makes a fresh router for the fleet. `jump=False` takes every step singly, for the same outcome.
    `on_progress` is told now and then which share of the requests is settled.
    """
    policy = make_policy(policy) if isinstance(policy, str) else policy
    _check_somebody_fits(workload, fleet)
    ledger = Ledger(len(workload))
    engines = [Engine(spec, policy, ledger, number) for number, spec in enumerate(fleet.engines)]
    routes = router(fleet)
    lengths = workload.output_tokens.tolist()

    def report() -> None:
        if on_progress is not None:
            on_progress(ledger.settled / len(workload))

    for row, job in enumerate(_jobs(workload, predictor)):
        engine = engines[routes.choose(job, job.arrival)]
        engine.advance(job.arrival, jump=jump)
        engine.submit(job, row, lengths[row])
        if row % _REPORT_EVERY == 0:
            report()
    for engine in engines:
        while engine.busy:
            engine.advance(engine.now + _DRAIN_SLICE_S, jump=jump)
            report()
    return Outcome.of(workload, policy.name, ledger)


def _jobs(workload: Workload, predictor: str) -> Iterator[Job]:
    """The requests as policies see them, made as they arrive: a week of traffic is never held at once."""
    predict = find_predictor(predictor)
    columns = ("arrival_s", "input_tokens", "output_tokens", "max_tokens", "priority", "llm", "tenant", "session")
    rows = zip(*(workload.table[name].to_pylist() for name in columns), strict=True)
    for row, (arrival, prompt, length, max_tokens, priority, llm, tenant, session) in enumerate(rows):
        yield Job(
            id=str(row),
            arrival=arrival,
            prompt_tokens=prompt,
            belief=predict(length, max_tokens),
            max_tokens=max_tokens,
            priority=priority,
            llm=llm,
            tenant=tenant,
            session=session,
        )


def _check_somebody_fits(workload: Workload, fleet: Fleet) -> None:
    """A single request too large is refused and counted; a fleet too small for all of them is a mistake."""
    needs = zip(workload.input_tokens.tolist(), workload.output_tokens.tolist(), strict=True)
    specs = set(fleet.engines)
    if not any(spec.can_hold(prompt, output) for prompt, output in needs for spec in specs):
        largest = max(min(spec.max_model_len, spec.kv_tokens) for spec in specs)
        raise InputError(
            f"no request fits into an engine, whose largest holds {largest} tokens",
            source=workload.name,
            field="fleet",
            hint="give engines with more KV memory, or shorter requests",
        )
