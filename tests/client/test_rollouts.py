"""Rollouts give every prompt once an epoch, like lengths together, and lose no answer of a step."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import JSONResponse

import lengthwise
from lengthwise.client.rollouts import RolloutError, RolloutStep, rollouts, steps_of
from lengthwise.errors import InputError
from lengthwise.predictors import LogTPredictions
from lengthwise.predictors.prefix_memory import MemoryPredictor
from tests.client.test_batch import Llm
from tests.gateway.engine import free_port, served

PROMPTS = [f"prompt {number}" for number in range(12)]


class ByNumber:
    """Predicts longer answers for later prompts."""

    def predict(self, inputs: Sequence[Any]) -> LogTPredictions:
        return LogTPredictions.of([3.0 + 0.1 * int(each.text.split()[1]) for each in inputs], 0.3, 8192)


def steps(url: str | list[str], **options: Any) -> list[RolloutStep]:
    engines = [url] if isinstance(url, str) else url
    return list(rollouts(PROMPTS, 3, engines, **{"per_step": 4, "predictor": ByNumber(), **options}))


@given(st.lists(st.floats(1, 1e4), min_size=1, max_size=60), st.integers(1, 9), st.integers(0, 3))
def test_every_row_is_in_one_step_and_steps_do_not_overlap_in_length(
    lengths: list[float], per_step: int, seed: int
) -> None:
    found = steps_of(lengths, per_step, np.random.default_rng(seed))
    assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    assert sorted(len(step) for step in found)[1:] == [per_step] * (len(found) - 1)
    ranges = sorted((min(lengths[row] for row in step), max(lengths[row] for row in step)) for step in found)
    assert all(before[1] <= after[0] for before, after in pairwise(ranges))


def test_an_epoch_has_every_prompt_once_with_all_samples_and_like_lengths_together() -> None:
    llm = Llm()
    with served(llm.app()) as url:
        found = steps(url, epochs=2, body={"max_tokens": 17, "temperature": 0.7})
    assert [(step.epoch, step.number) for step in found] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    for epoch in (0, 1):
        groups = [sorted(rollout.index for rollout in step.rollouts) for step in found if step.epoch == epoch]
        assert sorted(groups) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    rollout = found[0].rollouts[0]
    assert rollout.prompt == PROMPTS[rollout.index]
    assert [(answer.text, answer.tokens, answer.cut) for answer in rollout.answers] == [(rollout.prompt, 17, False)] * 3
    assert llm.asked == Counter(dict.fromkeys(PROMPTS, 6))
    assert len({body["seed"] for body in llm.bodies}) == len(llm.bodies) == 72
    assert {body["temperature"] for body in llm.bodies} == {0.7}


def test_without_like_lengths_steps_are_random() -> None:
    with served(Llm().app()) as url:
        found = steps(url, like_lengths=False)
    groups = [sorted(rollout.index for rollout in step.rollouts) for step in found]
    assert sorted(row for group in groups for row in group) == list(range(12))
    assert sorted(groups) != [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_step_is_generated_when_it_is_asked_for_and_not_ahead() -> None:
    llm = Llm()
    with served(llm.app()) as url:
        iterator = rollouts(PROMPTS, 3, [url], per_step=4, predictor=ByNumber())
        assert not llm.bodies
        for number in (1, 2):
            next(iterator)
            assert len(llm.bodies) == 12 * number


def test_the_longest_answers_go_out_first_and_engines_share_a_step() -> None:
    one, two = Llm(), Llm()
    with served(one.app()) as first, served(two.app()) as second:
        steps([first, second], per_step=12, at_once=36)
    assert one.asked + two.asked == Counter(dict.fromkeys(PROMPTS, 3))
    assert len(one.bodies) > 10 < len(two.bodies)
    alone = Llm()
    with served(alone.app()) as url:
        steps(url, per_step=12, at_once=1)
    asked = [int(body["messages"][0]["content"].split()[1]) for body in alone.bodies]
    assert asked == sorted(asked, reverse=True)


def test_the_second_epoch_knows_the_lengths_of_the_first() -> None:
    lengths = [4000, 20, 900, 25, 4100, 950, 22, 3900, 1000, 21, 4200, 980]

    def by_prompt(body: dict[str, Any]) -> JSONResponse:
        number = int(body["messages"][0]["content"].split()[1])
        choice = {"finish_reason": "stop", "message": {"content": "x"}}
        return JSONResponse({"choices": [choice], "usage": {"completion_tokens": lengths[number]}})

    with served(Llm(fault=by_prompt).app()) as url:
        found = steps(url, epochs=2, predictor=MemoryPredictor())
    groups = {frozenset(rollout.index for rollout in step.rollouts) for step in found if step.epoch == 1}
    assert groups == {frozenset({0, 4, 7, 10}), frozenset({2, 5, 8, 11}), frozenset({1, 3, 6, 9})}


def test_chats_are_sent_as_they_are() -> None:
    llm = Llm()
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Why?"}]
    with served(llm.app()) as url:
        (step,) = rollouts([chat], 2, [url], predictor=ByText())
    assert [body["messages"] for body in llm.bodies] == [chat, chat]
    assert step.rollouts[0].prompt == chat


class ByText:
    """Predicts the same for every prompt."""

    def predict(self, inputs: Sequence[Any]) -> LogTPredictions:
        return LogTPredictions.of([5.0] * len(inputs), 0.5, 8192)


def test_a_step_that_lacks_answers_is_an_error_that_says_why() -> None:
    wrong = JSONResponse({"error": {"message": "too long"}}, 400)
    engine = Llm(fault=lambda body: wrong if body["messages"][0]["content"] == "prompt 5" else None)
    with (
        served(engine.app()) as url,
        pytest.raises(RolloutError, match=r"lacks 3 of 36 answers \(http_400: too long\)"),
    ):
        steps(url, per_step=12)


def test_it_works_inside_a_running_event_loop() -> None:
    async def notebook(url: str) -> int:
        return len(steps(url))

    with served(Llm().app()) as url:
        assert asyncio.run(notebook(url)) == 3


def test_an_iterator_that_is_left_closes_its_connections() -> None:
    with served(Llm().app()) as url:
        iterator = rollouts(PROMPTS, 1, [url], per_step=4, predictor=ByNumber())
        next(iterator)
        iterator.close()  # type: ignore[attr-defined]
        assert list(iterator) == []


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([],), {}, "no prompts"),
        ((PROMPTS, 2, []), {}, "no engines"),
        ((PROMPTS, 0), {}, "samples is 0"),
        ((PROMPTS,), {"per_step": "x"}, "per_step"),
        (("a text",), {}, "prompts"),
        (([5],), {}, "row 1"),
        ((PROMPTS, 2, ["nowhere"]), {}, "is not the URL of an engine"),
        ((PROMPTS,), {"predictor": "fastt"}, "fastt"),
    ],
)
def test_wrong_arguments_are_refused_before_the_first_step(arguments: Any, options: Any, message: str) -> None:
    face: Any = lengthwise
    with pytest.raises(InputError, match=message):
        face.rollouts(*arguments, **options)


def test_the_example_of_the_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "guides" / "agents-batches-rollouts.md"
    (code,) = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    with served(Llm().app()) as url:
        exec(code, {"ENGINES": [url]})  # noqa: S102
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch 0", "epoch 0", "epoch 1", "epoch 1"]
    assert all("step" in line and "4 prompts, 512 tokens" in line for line in lines)


def test_an_engine_that_cannot_be_reached_is_named_at_the_first_step() -> None:
    with pytest.raises(InputError, match="cannot be reached"):
        next(rollouts(PROMPTS, 1, [f"http://127.0.0.1:{free_port()}"], predictor=ByNumber()))
