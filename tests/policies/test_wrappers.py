from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lengthwise.lengths import Point
from lengthwise.policies import Fcfs, Job, PolicyQueue
from lengthwise.policies.wrappers import Fair

WORK = 10
QUANTUM = 20


@given(first=st.integers(1, 5), second=st.integers(1, 5), order=st.permutations(range(60)))
def test_tenants_with_requests_waiting_are_served_in_proportion_to_their_weights(
    first: int, second: int, order: list[int]
) -> None:
    weights = {"a": float(first), "b": float(second)}
    queue = PolicyQueue(Fair(Fcfs(), quantum=QUANTUM, weights=weights))
    for number in order:
        tenant = "a" if number < 30 else "b"
        queue.push(Job(str(number), 0.0, prediction=Point(WORK), tenant=tenant), 0.0)
    served, left = {"a": 0, "b": 0}, {"a": 30, "b": 30}
    while all(left.values()):
        job = queue.pop(0.0)
        assert job is not None
        assert job.tenant is not None
        served[job.tenant] += WORK
        left[job.tenant] -= 1
        shares = [served[tenant] / weight for tenant, weight in weights.items()]
        assert abs(shares[0] - shares[1]) <= 2 * QUANTUM + 2 * WORK


def test_weights_are_not_part_of_the_name() -> None:
    assert Fair(Fcfs(), weights={"a": 2.0}).name == "fair(fcfs)"
