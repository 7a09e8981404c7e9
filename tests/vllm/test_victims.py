"""When a policy is called to find a victim: whenever the result may have changed, and not more often."""

from __future__ import annotations

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from lengthwise.lengths import LogT, Point
from lengthwise.policies import Job, JobColumns, PolicyQueue, make_policy
from lengthwise.policies.preemptive import Srpt
from lengthwise.vllm.scheduler import VictimSearch


class Counted(Srpt):
    """`srpt` that counts the calls of `find_victim`."""

    calls = 0

    def find_victim(self, jobs: JobColumns, candidate: Job | JobColumns, now: float) -> int | None:
        type(self).calls += 1
        return super().find_victim(jobs, candidate, now)


@pytest.fixture
def policy() -> Counted:
    Counted.calls = 0
    return Counted(c=0.8)


JOBS = {
    "short": Job("short", 0.0, prediction=Point(10)),
    "long": Job("long", 0.0, prediction=Point(100)),
    "longer": Job("longer", 0.0, prediction=Point(200)),
}


def find_victim(search: VictimSearch, policy: Counted, head: str, running: list[str]) -> str | None:
    if search.refused(policy, head, running):
        return None
    return search.find(PolicyQueue(policy), head, running, JOBS.__getitem__, 0.0)


def test_the_victim_is_the_one_that_the_policy_finds(policy: Counted) -> None:
    assert find_victim(VictimSearch(), policy, "short", ["long", "longer"]) == "longer"
    assert find_victim(VictimSearch(), policy, "longer", ["long", "short"]) is None
    assert find_victim(VictimSearch(), policy, "short", []) is None


def test_a_refusal_holds_until_something_changes(policy: Counted) -> None:
    search = VictimSearch()
    for _ in range(3):
        assert find_victim(search, policy, "longer", ["long", "short"]) is None
        search.count_step()
    assert policy.calls == 1
    find_victim(search, policy, "longer", ["short", "long"])
    assert policy.calls == 2, "other requests run"
    find_victim(search, policy, "long", ["short", "long"])
    assert policy.calls == 3, "another request is at the head of the queue"
    search.forget()
    find_victim(search, policy, "long", ["short", "long"])
    assert policy.calls == 4, "a prediction has arrived"


def test_a_refusal_expires_after_the_check_interval(policy: Counted) -> None:
    search = VictimSearch()
    for _ in range(2 * policy.preempt_check_interval + 1):
        find_victim(search, policy, "longer", ["long"])
        search.count_step()
    assert policy.calls == 3


def test_a_victim_whose_expected_remaining_grows_is_found_at_a_later_check() -> None:
    """With a heavy tail the expected remaining length grows with age: a victim appears though nothing else changes."""
    heavy = Job("heavy", 0.0, prediction=LogT(4.0, 1.5, 8192))
    other = Job("other", 0.0, prediction=Point(1.2 * heavy.expected))
    srpt, search, jobs = make_policy("srpt:c=1"), VictimSearch(), {"heavy": heavy, "other": other}
    found = []
    for generated in range(250):
        heavy.generated = generated
        refused = search.refused(srpt, "other", ["heavy"])
        found.append(None if refused else search.find(PolicyQueue(srpt), "other", ["heavy"], jobs.__getitem__, 0.0))
        search.count_step()
    first = found.index("heavy")
    assert first > 0
    assert first % srpt.preempt_check_interval == 0
