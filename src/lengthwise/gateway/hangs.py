"""Finds engines that hang by the answers that have not begun, and moves the requests that wait for them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lengthwise.gateway.dispatch import Dispatcher
from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.types import Call
from lengthwise.lengths import wide_prior
from lengthwise.policies import Job

_INTERVAL_S: Final = 0.25
MIN_SILENCE_S: Final = 3.0
"""Of an engine that hangs: steps of engines that work, their pauses and graph captures take less."""
_SLOWEST: Final = 4.0  # times what is usual
_PREFILL: Final = 0.1  # of the time of a generated token: the most that one of a prompt takes
_MIN_CHANCE: Final = 1e-3
_INDEPENDENT: Final = 4  # answers at most whose lengths are taken for independent


class HangWatch:
    """Looks at the engines every quarter of a second.

    An engine hangs if for at least 3 s no byte has arrived of any answer, and

    - a stream has no first byte 4 times the slowest recent TTFT after it was sent, or the last byte of others arrived,
      and 0.1 s_per_token * (tokens of all prompts that wait there) later; or
    - the answers in one piece that have not arrived should have: at a quarter of the recent speed, their lengths have a
      chance below 0.001 to let none of them end in the silence. It is the geometric mean of the chances of each, to the
      power of their number, at most 4, since lengths depend on each other.

    Then its breaker opens, and its requests without a first byte are sent to other engines, as far as they may be
    executed twice. An engine without answers so far is judged by the slowest of the others; without any, none hangs.
    """

    def __init__(self, dispatcher: Dispatcher, calls: Mapping[str, Call]) -> None:
        """`calls` has the open requests by the id of their job."""
        self._dispatcher = dispatcher
        self._calls = calls

    async def run(self) -> None:
        """Look at the engines until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            self.look()

    def look(self) -> None:
        """Move the requests of engines that hang."""
        now, engines = self._dispatcher.clock(), self._dispatcher.engines
        for engine in engines:
            if len(engines) == 1 or not engine.jobs or now - engine.heard_at < MIN_SILENCE_S:
                continue
            calls = [self._calls[name] for name in engine.jobs if name in self._calls]
            waiting = [call for call in calls if call.first_byte_s is None]
            # The head of a stream does not count: a server may send it while its engine hangs.
            begun = [call.answer for call in calls if call.answer is not None and call.first_byte_s is not None]
            heard = max([engine.heard_at, *(answer.heard_at for answer in begun)])
            if waiting and self._hangs(engine, waiting, heard, now):
                self._dispatcher.on_hang(engine)
                for call in waiting:
                    self._move(engine, call)

    def _hangs(self, engine: GatewayEngine, waiting: Sequence[Call], heard: float, now: float) -> bool:
        s_per_token = engine.speed.s_per_token
        if s_per_token == math.inf:
            known = [other.speed.s_per_token for other in self._dispatcher.engines]
            s_per_token = max((seconds for seconds in known if seconds < math.inf), default=math.inf)
        if s_per_token == math.inf:
            return False
        streams = [call.job for call in waiting if call.body.stream]
        prefill_s = _PREFILL * s_per_token * sum(call.job.prompt_tokens for call in waiting)
        limit_s = max(MIN_SILENCE_S, _SLOWEST * engine.speed.slowest_ttft_s) + prefill_s
        if any(now - max(heard, _sent_at(job)) > limit_s for job in streams):
            return True
        whole = [call.job for call in waiting if not call.body.stream]
        oldest = min(map(_sent_at, whole), default=now)
        silent_s = now - max(heard, oldest)
        return silent_s > MIN_SILENCE_S + prefill_s and chance(whole, heard, now, s_per_token) < _MIN_CHANCE

    def _move(self, engine: GatewayEngine, call: Call) -> None:
        task = call.caller.task
        if call.once or call.moves or call.pinned is not None or task is None:
            return
        if self._dispatcher.another_up(call.job.llm, [engine], well=True) and engine.retries.wait_s(0) is not None:
            call.once = call.moves = True
            task.cancel()


def chance(jobs: Iterable[Job], since: float, now: float, s_per_token: float) -> float:
    """Return the chance that none of the answers has ended from `since` to `now`, at a quarter of the speed."""
    logs = []
    for job in jobs:
        law = (wide_prior(int(job.cap)) if job.prediction is None else job.prediction).censored_at(job.max_tokens)
        sent = _sent_at(job)
        before, after = ((max(0.0, at - sent)) / (_SLOWEST * s_per_token) for at in (since, now))
        left = law.survival(after)
        if left <= 0.0:
            return 0.0
        logs.append(math.log(left / law.survival(before)))
    return math.exp(sum(logs) / len(logs) * min(len(logs), _INDEPENDENT)) if logs else 1.0


def _sent_at(job: Job) -> float:
    return math.inf if job.started is None else job.started
