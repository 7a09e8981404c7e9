"""The router of a gateway: told what is known of its engines, asked where each request goes, and accounted for."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lengthwise.policies import Job
from lengthwise.routers import Admitted, EngineInfo, Event, Evicted, Finished, Progress, Router, Scraped, make_router
from lengthwise.workloads.blocks import BLOCK_TOKENS

if TYPE_CHECKING:
    from lengthwise.engines.engine_metrics import EngineGauges
    from lengthwise.gateway.dispatch import Engine

_log = logging.getLogger(__name__)
_USUAL_KV_TOKENS: Final = EngineInfo(0).kv_tokens


class RouterAdapter:
    """Puts a router's choices into practice, and keeps it told: who is up, who began, who is over, who is busy.

    Engines that are not up are unknown to the router; what was sent to one that goes down is forgotten at once. Without
    a router the first engine that is free is taken: before one engine there is nothing to choose.
    """

    def __init__(self, router: Router | None) -> None:
        self.router = router
        self.decisions: Counter[str] = Counter()
        """Choices, by the URL of the engine."""
        self.costs: Counter[str] = Counter()
        """The terms of what was chosen, each summed up; units are the router's."""
        self.seconds = 0.0
        """What choosing took."""
        self._kv_tokens: dict[int, int] = {}

    @property
    def name(self) -> str | None:
        """Of the router."""
        return None if self.router is None else self.router.name

    @property
    def uses_predictions(self) -> bool:
        """Whether choices look at predictions at all."""
        return self.router is not None and self.router.uses_predictions

    def up(self, engine: Engine) -> None:
        """The engine may be chosen; one that is known is described anew."""
        if self.router is None:
            return
        kv_tokens = self._kv_tokens.get(engine.number, _USUAL_KV_TOKENS)
        info = EngineInfo(engine.number, kv_tokens=kv_tokens, block_tokens=BLOCK_TOKENS, max_num_seqs=engine.places)
        self.router.engine_up(info)

    def down(self, engine: Engine) -> None:
        """The engine may not be chosen, and what it held is lost."""
        if self.router is not None:
            self.router.engine_down(engine.number)

    def holds(self, engine: Engine, kv_tokens: int) -> None:
        """The engine has so much KV memory."""
        if self._kv_tokens.get(engine.number) != kv_tokens:
            self._kv_tokens[engine.number] = kv_tokens
            if engine.up:
                self.up(engine)

    def choose(self, job: Job, free: Sequence[Engine], now: float) -> Engine:
        """One of `free`, which is never empty; all of them are up."""
        if self.router is None:
            self.decisions[free[0].url] += 1
            return free[0]
        began = time.perf_counter()
        decision = self.router.choose(job, now, [engine.number for engine in free])
        self.seconds += time.perf_counter() - began
        engine = next(engine for engine in free if engine.number == decision.engine)
        self.decisions[engine.url] += 1
        self.costs.update(decision.terms)
        if _log.isEnabledFor(logging.DEBUG):
            terms = " ".join(f"{name}={value:.6g}" for name, value in decision.terms.items())
            _log.debug("job %s to %s of %d free: %s", job.id, engine.url, len(free), terms)
        return engine

    def began(self, job: Job, engine: Engine, now: float) -> None:
        """The first byte of the answer is here."""
        self._tell(Admitted(job.id, engine.number, now))

    def ended(self, job: Job, engine: Engine, now: float, generated: int, ttft_s: float | None) -> None:
        """The request no longer runs there, however that came."""
        self._tell(Finished(job.id, engine.number, now, generated, ttft_s))

    def scraped(self, engine: Engine, told: EngineGauges, now: float) -> None:
        """The engine says how busy it is."""
        self._tell(Scraped(engine.number, now, told.running, told.waiting, told.kv_use))

    def _tell(self, event: Event) -> None:
        if self.router is not None:
            self.router.observe(event)


def warm_router(name: str) -> Router:
    """A fresh router whose parts are all compiled: that takes seconds once on a machine, and no request may wait."""
    tried = make_router(name)
    tried.engine_up(EngineInfo(0))
    tried.engine_up(EngineInfo(1, kv_tokens=2 * BLOCK_TOKENS))
    for number in range(4):
        tried.choose(Job(str(number), 0.0, prompt_tokens=4 * BLOCK_TOKENS, blocks=[1, 2, 3, 4 + number]), 0.0)
        for engine in (0, 1):
            tried.observe(Admitted(str(number), engine, 0.0))
            tried.observe(Progress(str(number), engine, 0.0, 1))
            tried.observe(Scraped(engine, 0.0, 1, 0, 0.5))
            tried.observe(Finished(str(number), engine, 1.0, 2))
            tried.observe(Evicted(engine, 1.0, [1]))
    tried.engine_down(1)
    return make_router(name)
