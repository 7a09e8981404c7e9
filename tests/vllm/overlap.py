"""An engine around a scheduler, without a model, with several steps in flight."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.vllm.scheduling import model_output


def token_at(name: str, position: int) -> int:
    """Return the token of a request at a position, so that a lost, repeated or misplaced token is detected."""
    return (int(name) * 7919 + position * 104_729) % 1000


@dataclass
class Host:
    """An engine with up to `depth` steps in flight; 2 is async scheduling."""

    scheduler: Any
    depth: int = 1
    preempted: list[str] = field(default_factory=list)
    scheduled: list[set[str]] = field(default_factory=list)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    in_flight: deque[tuple[Any, Any]] = field(default_factory=deque)

    def step(self) -> None:
        output = self.scheduler.schedule()
        self.preempted += sorted(output.preempted_req_ids or ())
        names = list(output.num_scheduled_tokens)
        self.scheduled.append(set(names))
        if names:
            requests = [self.scheduler.requests[name] for name in names]
            sampled = [
                [] if one.is_prefill_chunk else [token_at(one.request_id, one.num_computed_tokens)] for one in requests
            ]
            result = model_output(names, sampled)
            self.attach_states(result, requests)
            self.in_flight.append((output, result))
        if self.in_flight and (len(self.in_flight) >= self.depth or not names):
            self._end(*self.in_flight.popleft())

    def attach_states(self, result: Any, requests: list[Any]) -> None:
        """Attach what a worker adds to a step's output; nothing here."""

    def _end(self, output: Any, result: Any) -> None:
        for outputs in self.scheduler.update_from_output(output, result).values():
            for one in outputs.outputs:
                self.tokens.setdefault(one.request_id, []).extend(one.new_token_ids)
                self.finished += [one.request_id] if one.finish_reason is not None else []

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def drain(self) -> None:
        for _ in range(20_000):
            if not (self.scheduler.has_unfinished_requests() or self.in_flight):
                return
            self.step()
        raise AssertionError("the schedule does not drain")
