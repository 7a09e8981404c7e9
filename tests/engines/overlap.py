"""An engine around a scheduler, without a model, with several steps under way at once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.engines.scheduling import spoken


def said_at(name: str, position: int) -> int:
    """The one right token there: so that one that is lost, repeated or out of order is seen."""
    return (int(name) * 7919 + position * 104_729) % 1000


@dataclass
class Host:
    """As many steps under way at once as `depth` says; 2 is async scheduling."""

    scheduler: Any
    depth: int = 1
    preempted: list[str] = field(default_factory=list)
    scheduled: list[set[str]] = field(default_factory=list)
    said: dict[str, list[int]] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    under_way: deque[tuple[Any, Any]] = field(default_factory=deque)

    def step(self) -> None:
        output = self.scheduler.schedule()
        self.preempted += sorted(output.preempted_req_ids or ())
        names = list(output.num_scheduled_tokens)
        self.scheduled.append(set(names))
        if names:
            requests = [self.scheduler.requests[name] for name in names]
            tokens = [
                [] if one.is_prefill_chunk else [said_at(one.request_id, one.num_computed_tokens)] for one in requests
            ]
            result = spoken(names, tokens)
            self.tell(result, requests)
            self.under_way.append((output, result))
        if self.under_way and (len(self.under_way) >= self.depth or not names):
            self._end(*self.under_way.popleft())

    def tell(self, result: Any, requests: list[Any]) -> None:
        """What a worker would put on a step's output, as it computes it."""

    def _end(self, output: Any, result: Any) -> None:
        for outputs in self.scheduler.update_from_output(output, result).values():
            for one in outputs.outputs:
                self.said.setdefault(one.request_id, []).extend(one.new_token_ids)
                self.finished += [one.request_id] if one.finish_reason is not None else []

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def drain(self) -> None:
        for _ in range(20_000):
            if not (self.scheduler.has_unfinished_requests() or self.under_way):
                return
            self.step()
        raise AssertionError("the schedule does not drain")
