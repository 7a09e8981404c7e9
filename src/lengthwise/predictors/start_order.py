"""The order in which answers are learned from: that in which their requests started to run.

The first answers to finish after a burst begins, or after an LLM is first asked, are the short ones. Learned from at
once, they make every prediction too short, and most where the predictor knows least. Those that started first are long
and short alike.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

HELD_PER_RUNNING: Final = 8
"""Answers that are held at most, for each request that runs: the longest answer takes about as many means."""

Answer = TypeVar("Answer")


class StartOrder(Generic[Answer]):
    """Holds answers back until every request that started before theirs has ended.

    Past HELD_PER_RUNNING answers for each running request, the one that has run longest is passed over: it delays no
    further answers, and its own is released when it ends. Answers must not be None.
    """

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, Answer | None] = OrderedDict()  # None: runs
        self._held = 0

    def __len__(self) -> int:
        """Requests that run, and answers that are held."""
        return len(self._answers)

    def started(self, request: Hashable) -> None:
        """Report that a request runs; nothing changes where it was reported before."""
        self._answers.setdefault(request, None)

    def ended(self, request: Hashable, answer: Answer) -> list[Answer]:
        """Report an answer; return those to learn from now, in order. That of a request not reported is among them."""
        if request not in self._answers:
            return [answer]
        self._answers[request] = answer
        self._held += 1
        return self._released()

    def rest(self) -> list[Answer]:
        """Return the answers that are held, in order, and forget all requests."""
        held = [answer for answer in self._answers.values() if answer is not None]
        self._answers.clear()
        self._held = 0
        return held

    def _released(self) -> list[Answer]:
        found = []
        while self._answers:
            request, answer = next(iter(self._answers.items()))
            if answer is not None:
                found.append(answer)
                self._held -= 1
            elif self._held <= HELD_PER_RUNNING * (len(self._answers) - self._held):
                break
            del self._answers[request]
        return found
