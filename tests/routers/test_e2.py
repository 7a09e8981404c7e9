"""E2's view of each engine's memory under arrivals, completions and failures."""

from __future__ import annotations

import numpy as np
import pytest

from lengthwise.lengths import Point
from lengthwise.policies import Job
from lengthwise.routers import EngineInfo, Finished
from lengthwise.routers.e2 import E2

BLOCK = 64


@pytest.mark.parametrize("kv_tokens", [40 * BLOCK, 10_000 * BLOCK])
def test_the_held_tokens_of_an_engine_are_those_of_its_prefixes(kv_tokens: int) -> None:
    rng = np.random.default_rng(3)
    router = E2(settle=0)
    for engine in range(3):
        router.engine_up(EngineInfo(engine, kv_tokens=kv_tokens, block_tokens=BLOCK))
    live: list[tuple[str, int]] = []
    for number in range(300):
        prefix, shared, own = int(rng.integers(5)), int(rng.integers(1, 9)), int(rng.integers(0, 4))
        blocks = [100 * prefix + n for n in range(shared)] + [10**6 + 10 * number + n for n in range(own)]
        tokens = len(blocks) * BLOCK + int(rng.integers(BLOCK))
        chosen = router.choose(Job(str(number), 0.0, tokens, prediction=Point(50), blocks=blocks), 0.1 * number)
        live.append((str(number), int(chosen.engine)))
        number = router.numbers[chosen.engine]
        idle = [node for node in router._held[number] if not node.active.get(number)]
        assert router._held_tokens[number] <= kv_tokens or not idle, "nothing is evicted before memory is short"
        if rng.random() < 0.9:
            name, engine = live.pop(int(rng.integers(len(live))))
            router.observe(Finished(name, engine, 0.1 * number, int(rng.integers(1, 100)), ttft_s=0.1))
        if number == 200:
            router.engine_down(1)
            live = [(name, engine) for name, engine in live if engine != 1]
        for number, nodes in router._held.items():
            assert router._held_tokens[number] == sum(node.tokens for node in nodes)
            assert all(number in node.used for node in nodes)
