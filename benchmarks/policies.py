"""Speed of policies: `python -m benchmarks.policies`.

CPU time of one `key`, of the `keys` of 1,000 waiting jobs (before their first token, and preempted after some tokens),
and of one `find_victim` among 64 running jobs; and of `select` among 1,000 waiting jobs under `slo` and `ontime`. The
fastest of several rounds, in microseconds.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from benchmarks import Figure, cpu_microseconds
from lengthwise.lengths import LogT
from lengthwise.policies import POLICIES, Job, JobColumns, PolicyQueue, QueueView, WaitingJobs, make_policy
from lengthwise.policies.slo import LatencyTarget

SPECS = (*POLICIES, "bounded(tie)", "fair(srpt)", "classes(gittins)")
VIEW = QueueView(1000, 64, 64)


def measure(spec: str, jobs: list[Job]) -> dict[str, float]:
    policy, one = make_policy(spec), jobs[0]
    fresh = JobColumns.of(jobs)
    ages = np.random.default_rng(1).integers(1, 1500, len(jobs)).astype(float)
    preempted = JobColumns.filled(
        **{name: getattr(fresh, name) for name in JobColumns.__dataclass_fields__ if name != "generated"},
        generated=ages,
    )
    running = preempted.take(np.arange(64))
    return {
        "key": cpu_microseconds(lambda: policy.key(one, VIEW, 2000.0), 2000),
        "keys_1000": cpu_microseconds(lambda: policy.keys(fresh, VIEW, 2000.0), 100),
        "keys_1000_preempted": cpu_microseconds(lambda: policy.keys(preempted, VIEW, 2000.0), 50),
        "find_victim_64": cpu_microseconds(lambda: policy.find_victim(running, one, 2000.0), 100),
    }


def measure_select(spec: str, jobs: list[Job]) -> float:
    """Return the time of one `select`, with the latency of FCFS counted, as after each arrival."""
    queue = PolicyQueue(make_policy(spec), slots=64)
    for number, job in enumerate(jobs[:100]):
        queue.push(job, job.arrival)
        queue.pop(job.arrival)
        job.generated = 50 + number
        queue.finished(job)
        job.generated = 0
    state = cast("LatencyTarget", jobs[0].rounds)
    waiting = WaitingJobs(JobColumns.of(jobs), QueueView(1000, 64, 64, 2000.0), state)

    def select() -> int:
        state.arrived = 1
        return queue.policy.select(waiting, 2000.0)  # type: ignore[attr-defined, no-any-return]

    return cpu_microseconds(select, 50)


def main() -> None:
    rng = np.random.default_rng(0)
    jobs = [
        Job(str(n), float(n), 100, prediction=LogT(rng.normal(5.7, 1), rng.uniform(0.2, 1.2), 8192))
        for n in range(1000)
    ]
    figures = {spec: measure(spec, jobs) for spec in SPECS}
    print(
        f"{'':18} {'key':>8} {'keys, 1,000':>12} {'preempted':>10} {'find_victim, 64':>15}   microseconds of CPU time"
    )
    for spec, row in figures.items():
        key, fresh, preempted, victim = row.values()
        print(f"{spec:18} {key:8.2f} {fresh:12.1f} {preempted:10.1f} {victim:15.1f}")
    for spec in ("slo", "slo:seconds=2000", "ontime:ttft=2000"):
        print(Figure(f"select of {spec} among 1,000", measure_select(spec, jobs), most=200.0))


if __name__ == "__main__":
    main()
