"""The order inside an engine: which waiting request runs next, and which running one yields.

Policies are pure: time comes in as an argument, and they know no clock, socket, simulator or engine.
"""

from lengthwise.policies.base import BasePolicy, parameter
from lengthwise.policies.columns import JobColumns
from lengthwise.policies.contract import Policy, QueueView, Rekey, Rounds
from lengthwise.policies.fcfs import Fcfs
from lengthwise.policies.job import Job
from lengthwise.policies.queue import PolicyQueue
from lengthwise.policies.registry import POLICIES, WRAPPERS, make_policy
from lengthwise.policies.sjf import Sjf

__all__ = [
    "POLICIES",
    "WRAPPERS",
    "BasePolicy",
    "Fcfs",
    "Job",
    "JobColumns",
    "Policy",
    "PolicyQueue",
    "QueueView",
    "Rekey",
    "Rounds",
    "Sjf",
    "make_policy",
    "parameter",
]
