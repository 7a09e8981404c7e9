"""When an engine's policy is asked to let running requests yield to a waiting one; nothing here knows which engine.

The simulator asks by the same rules (`simulator/kernel/step.py`): at the beginning of a step, for the first in line
only, as long as it finds no room and the policy names somebody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lengthwise.policies import Job, Policy

__all__ = ["Room"]


class Room:
    """Asks a policy who makes room for the first in line, and no oftener than it says that it must be asked.

    A no holds until another request is first in line, others run, a prediction has come, or the running ones have gone on
    for `preempt_check_interval` steps. So a step in which nothing has changed costs the comparison of two lists of names.
    """

    def __init__(self) -> None:
        self._refused: list[str] = []
        self._steps = 0

    def forget(self) -> None:
        """Ask again at the next chance: a prediction or the policy has changed."""
        self._refused = []

    def stepped(self) -> None:
        """Count a step."""
        self._steps += 1

    def made_by(
        self, policy: Policy, head: str, running: Sequence[str], job_of: Callable[[str], Job], now: float
    ) -> str | None:
        """Return who of the running, in order of admission, yields to the first in line; None: nobody."""
        question = [head, *running]
        if question == self._refused and (
            policy.preempt_check_interval == 0 or self._steps < policy.preempt_check_interval
        ):
            return None
        victim = policy.victim([job_of(name) for name in running], job_of(head), now)
        if victim is None:
            self._refused, self._steps = question, 0
            return None
        return victim.id
