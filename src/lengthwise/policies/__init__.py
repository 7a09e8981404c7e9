"""The order inside an engine: which waiting request runs next, which running one is preempted, which may start.

Policies are pure: time is an argument, and they know no clock, socket, simulator or engine.
"""

from lengthwise.policies.admission import KvDemand, peak_kv_tokens
from lengthwise.policies.arrival_order import Fcfs
from lengthwise.policies.base import BasePolicy, parameter
from lengthwise.policies.job import Job, JobColumns
from lengthwise.policies.protocol import Policy, QueueView, Rekey, Rounds, SelectingPolicy, WaitingJobs, selects
from lengthwise.policies.queue import PolicyQueue, TokenRate
from lengthwise.policies.registry import POLICIES, WRAPPERS, make_policy
from lengthwise.policies.shortest import Sjf

__all__ = [
    "POLICIES",
    "WRAPPERS",
    "BasePolicy",
    "Fcfs",
    "Job",
    "JobColumns",
    "KvDemand",
    "Policy",
    "PolicyQueue",
    "QueueView",
    "Rekey",
    "Rounds",
    "SelectingPolicy",
    "Sjf",
    "TokenRate",
    "WaitingJobs",
    "make_policy",
    "parameter",
    "peak_kv_tokens",
    "selects",
]
