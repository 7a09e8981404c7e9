"""When a policy is asked who makes room: no oftener than it must be, and never less."""

from __future__ import annotations

import pytest

from tests.engines.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from lengthwise.engines.vllm import VictimSearch
from lengthwise.lengths import LogT, Point
from lengthwise.policies import Job, JobColumns, PolicyQueue, make_policy
from lengthwise.policies.preemptive import Srpt


class Counted(Srpt):
    """`srpt`, and how often it was asked."""

    asked = 0

    def find_victim(self, jobs: JobColumns, candidate: Job | JobColumns, now: float) -> int | None:
        type(self).asked += 1
        return super().find_victim(jobs, candidate, now)


@pytest.fixture
def policy() -> Counted:
    Counted.asked = 0
    return Counted(c=0.8)


JOBS = {
    "short": Job("short", 0.0, prediction=Point(10)),
    "long": Job("long", 0.0, prediction=Point(100)),
    "longer": Job("longer", 0.0, prediction=Point(200)),
}


def asked(search: VictimSearch, policy: Counted, head: str, running: list[str]) -> str | None:
    if search.refused(policy, head, running):
        return None
    return search.find(PolicyQueue(policy), head, running, JOBS.__getitem__, 0.0)


def test_it_says_whom_the_policy_says(policy: Counted) -> None:
    assert asked(VictimSearch(), policy, "short", ["long", "longer"]) == "longer"
    assert asked(VictimSearch(), policy, "longer", ["long", "short"]) is None
    assert asked(VictimSearch(), policy, "short", []) is None


def test_a_no_holds_until_something_changes(policy: Counted) -> None:
    search = VictimSearch()
    for _ in range(3):
        assert asked(search, policy, "longer", ["long", "short"]) is None
        search.count_step()
    assert policy.asked == 1
    asked(search, policy, "longer", ["short", "long"])
    assert policy.asked == 2, "others run"
    asked(search, policy, "long", ["short", "long"])
    assert policy.asked == 3, "another is first in line"
    search.forget()
    asked(search, policy, "long", ["short", "long"])
    assert policy.asked == 4, "a prediction has come"


def test_a_no_is_asked_again_after_so_many_steps(policy: Counted) -> None:
    search = VictimSearch()
    for _ in range(2 * policy.preempt_check_interval + 1):
        asked(search, policy, "longer", ["long"])
        search.count_step()
    assert policy.asked == 3


def test_who_grows_with_age_is_found_by_asking_again() -> None:
    """Of an uncertain prediction more is to come the longer it runs: a no becomes a yes though nothing else is new."""
    heavy = Job("heavy", 0.0, prediction=LogT(4.0, 1.5, 8192))
    other = Job("other", 0.0, prediction=Point(1.2 * heavy.expected))
    srpt, search, jobs = make_policy("srpt:c=1"), VictimSearch(), {"heavy": heavy, "other": other}
    said = []
    for generated in range(250):
        heavy.generated = generated
        refused = search.refused(srpt, "other", ["heavy"])
        said.append(None if refused else search.find(PolicyQueue(srpt), "other", ["heavy"], jobs.__getitem__, 0.0))
        search.count_step()
    first = said.index("heavy")
    assert first > 0
    assert first % srpt.preempt_check_interval == 0
