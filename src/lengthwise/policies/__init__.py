"""The order inside an engine: which waiting request runs next, and which running one yields.

Policies are pure: time comes in as an argument, and they know no clock, socket, simulator or engine.
"""

from lengthwise.policies.contract import JobColumns, Policy, QueueView
from lengthwise.policies.fcfs import Fcfs
from lengthwise.policies.job import Job
from lengthwise.policies.queue import PolicyQueue
from lengthwise.policies.registry import POLICIES, make_policy
from lengthwise.policies.sjf import Sjf

__all__ = [
    "POLICIES",
    "Fcfs",
    "Job",
    "JobColumns",
    "Policy",
    "PolicyQueue",
    "QueueView",
    "Sjf",
    "make_policy",
]
