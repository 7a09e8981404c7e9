"""The real engine's own steps: logged, fitted, and an engine for the simulator made of them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from lengthwise.engines.embedded import EmbeddedEngine, EngineOptions
from lengthwise.engines.endpoint_probe import ProbePlan, probe
from lengthwise.engines.engine_metrics import told_facts
from lengthwise.engines.fit import StepTimes, engine_spec, fit_cost
from lengthwise.engines.steps import read_steps
from lengthwise.simulator import StepCost
from tests.engines.need import need_vllm


def test_the_embedded_engine_is_fitted_to_its_own_steps(tmp_path: Path) -> None:
    need_vllm()
    log = tmp_path / "steps.parquet"
    options = EngineOptions(policy="fcfs", predictor="none", max_num_seqs=2, plugin_options={"steps": str(log)})
    with EmbeddedEngine(options) as engine:
        plan = ProbePlan(engine.url, longest=128, batches=(1, 2), answer=8, repeats=2, staggered=True)
        seen = asyncio.run(probe(plan, lambda _: None))
        told = asyncio.run(told_facts(engine.url, max_num_seqs=2))
        time.sleep(3.0)  # an idle engine writes its steps within a second or so, however it is ended
    table, facts = read_steps(log)
    steps = StepTimes.of(table)
    sent = plan.rounds()
    warm = 16 + 128  # two prompts, answered with four tokens each
    # Every prompt is new, so all of it is computed, once; the last token of an answer is not.
    assert steps.prompt_tokens.sum() == warm + sum(prompt for some in sent for prompt, *_ in some)
    assert steps.decodes.sum() == 2 * 3 + sum(answer - 1 for some in sent for _, answer, _ in some)
    assert set(steps.decodes.tolist()) <= {0.0, 1.0, 2.0}
    assert (told.kv_tokens, told.block_size, told.max_model_len) == (
        facts.kv_tokens,
        facts.block_size,
        facts.max_model_len,
    )
    assert not facts.chunked_prefill
    spec = engine_spec("real", fit_cost(steps).cost, facts)
    assert isinstance(spec.cost, StepCost)
    assert 0 < steps.at(spec.cost).sum() <= steps.seconds.sum() * (1 + 1e-9)
    assert set(seen.prompt_tokens.tolist()) == {0.0, *(float(length) for length in plan.lengths)}
