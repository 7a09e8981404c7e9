"""Fair shares among tenants, for any policy."""

from __future__ import annotations

from dataclasses import dataclass

from lengthwise.policies.base import parameter
from lengthwise.policies.contract import Rounds
from lengthwise.policies.job import Job
from lengthwise.policies.rounds import FlowRounds
from lengthwise.policies.wrapper import InTurns


@dataclass(frozen=True)
class Fair(InTurns):
    """Any policy, with the tenants in turns: `fair(tie):quantum=8192`.

    place: round, then the key of the policy inside
    In each round a tenant has `quantum` = 32,768 tokens of work (prompt + expected answer; the truth replaces what was
    expected once a job is done, where the host tells it); what a tenant sends beyond that belongs to later rounds. A
    tenant that was away joins in the round being served: shares that were not used are not saved up. This is start-time
    fair queueing, with tags rounded down to rounds so that the policy inside has something to order.

    Claim. Over any time in which two tenants both always have requests waiting, the work admitted of the one exceeds
    that of the other by at most 2 * quantum + 2 * m, m the most work in one request.
    Proof. Let the rounds being served at the two ends of that time be r and s. Nobody waits in a round before the one
    being served, so a tenant that always waits stands at or beyond it, and its requests follow each other without a
    gap. A request of round n starts from quantum * n up to quantum * (n + 1). What is admitted of the one tenant starts
    at or after quantum * r and ends before quantum * (s + 1) + m. Of the other, all that starts from quantum * (r + 1)
    up to quantum * s is admitted in that time, at least quantum * (s - r - 1) - m. The difference is as claimed. QED.
    (Counted by the work charged; what the truth corrects counts from then on. Priority and preemption are outside.)

    The price: the policy inside orders a round, not the whole queue, also while a tenant is alone. A larger quantum
    gives it more to order and tenants a coarser turn; the default holds some 80 requests of 400 tokens for each tenant.
    Requests without a tenant are one tenant together. The state, where each tenant stands, is kept by the queue.
    """

    kind = "fair"

    quantum: float = parameter(32_768, minimum=1)

    @property
    def uses_predictions(self) -> bool:
        """What is expected of a request is charged to its tenant."""
        return True

    def own_rounds(self) -> Rounds:
        """Tenants in turns."""
        quantum = int(self.quantum)
        return FlowRounds(flow=_tenant, work=_tokens, quota=lambda _: quantum)


def _tenant(job: Job) -> str:
    return job.tenant or ""


def _tokens(job: Job) -> int:
    return job.prompt_tokens + max(1, round(job.expected))
