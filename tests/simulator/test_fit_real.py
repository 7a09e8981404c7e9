"""The logged steps of a real engine, fitted to an engine for the simulator."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pyarrow.compute as pc
import pytest

from lengthwise.client.scrape import fetch_engine_facts
from lengthwise.client.step_times import StepTimesPlan, measure_step_times
from lengthwise.simulator import StepCost
from lengthwise.simulator.fit import StepTimes, engine_spec, fit_cost
from lengthwise.simulator.step_log import read_steps
from lengthwise.vllm.embedded import EmbeddedEngine


@pytest.mark.engine
def test_the_embedded_engine_is_fitted_to_its_own_steps(embedded_engine: EmbeddedEngine) -> None:
    began = time.time()
    log = Path(embedded_engine.options.plugin_options["steps"])
    plan = StepTimesPlan(embedded_engine.url, longest=128, batches=(1, 2), answer=8, repeats=2, staggered=True)
    seen = asyncio.run(measure_step_times(plan, lambda _: None))
    reported = asyncio.run(fetch_engine_facts(embedded_engine.url, max_num_seqs=4))
    sent = plan.rounds()
    warm = 16 + 128  # two prompts, answered with four tokens each
    # Every prompt is new, so all of it is computed, once; the last token of an answer is not.
    prompts = warm + sum(prompt for batch in sent for prompt, *_ in batch)
    decodes = 2 * 3 + sum(answer - 1 for batch in sent for _, answer, _ in batch)
    deadline = time.monotonic() + 60
    while True:  # an idle engine writes its steps within a second or so
        table, facts = read_steps(log)
        steps = StepTimes.of(table.filter(pc.greater_equal(table["start_s"], began)))
        if steps.prompt_tokens.sum() == prompts and steps.decodes.sum() == decodes:
            break
        assert time.monotonic() < deadline, (steps.prompt_tokens.sum(), prompts, steps.decodes.sum(), decodes)
        time.sleep(0.1)
    assert set(steps.decodes.tolist()) <= {0.0, 1.0, 2.0, 3.0, 4.0}
    assert (reported.kv_tokens, reported.block_size, reported.max_model_len) == (
        facts.kv_tokens,
        facts.block_size,
        facts.max_model_len,
    )
    assert not facts.chunked_prefill
    spec = engine_spec("real", fit_cost(steps).cost, facts)
    assert isinstance(spec.cost, StepCost)
    assert 0 < steps.at(spec.cost).sum() <= steps.seconds.sum() * (1 + 1e-9)
    assert set(seen.prompt_tokens.tolist()) == {0.0, *(float(length) for length in plan.lengths)}
