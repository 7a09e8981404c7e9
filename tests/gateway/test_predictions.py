"""Waiting requests are ordered by their predicted lengths, and no request waits for a prediction."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lengthwise.policies import Job, QueueView, make_policy
from lengthwise.predictors import PredictionInput, load_predictor
from lengthwise.predictors.service import PredictionService
from lengthwise.predictors.state_file import StateFile
from tests.gateway.conftest import PATIENCE_S
from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import ADMIN, CHAT, PLAIN, Clock, body, gateway, hinted, metric, post, until, until_true
from tests.gateway.test_order import hold
from tests.predictors.guesses import Guess

pytestmark = pytest.mark.anyio


async def events(http: aiohttp.ClientSession, url: str, **wanted: int) -> None:
    """Wait until these events have been counted so often."""

    async def counted() -> bool:
        lines = {name: f'lengthwise_predictor_events_total{{event="{name}"}}' for name in wanted}
        return all([await metric(http, url, line) == wanted[name] for name, line in lines.items()])

    await until(counted)


TAUS = ("alone", "learned")


async def learned_words(stream: aiohttp.ClientResponse) -> Any:
    """Return what the next snapshot of the dashboard shows of learning."""
    name = b""
    async for line in stream.content:
        name = line[7:].strip() if line.startswith(b"event: ") else name
        if line.startswith(b"data: ") and name == b"snapshot":
            return json.loads(line[6:])["learned"]
    raise AssertionError("no snapshot")


def asking(name: str, prompt: str, **fields: Any) -> dict[str, Any]:
    return body(name, 900, prompt=prompt, **fields)


async def test_a_request_that_does_not_wait_is_predicted_only_to_learn(
    http: aiohttp.ClientSession, guess: Guess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengthwise.predictors.service._SAMPLES_PER_S", 0.0)
    monkeypatch.setattr("lengthwise.predictors.service._MAX_SAMPLES", 2.0)
    engine = StandIn(lengths=dict.fromkeys(["a", "b", "c", "blocker", "waits"], 1))
    with served(engine.app()) as engine_url, gateway(engine_url, policy="sjf", in_flight=1, predictor="fast") as url:
        for name in ("a", "b", "c"):
            await post(http, url, asking(name, f"about {name} 20"))
        await events(http, url, asked=2, answered=2)
        answers = await hold(http, url, engine, [asking("waits", "about 30")])
        await events(http, url, asked=3, answered=3)
        engine.gate.set()
        assert {status for status, _ in await answers} == {200}
        place = 'lengthwise_predicted_answers_total{interval="%s",model="stand-in"}'
        counted = [await metric(http, url, place % each) for each in ("below", "inside", "above")]
        assert sum(counted) == 1  # the others ran at once, before their predictions
    assert guess.predicted == ["about a 20", "about b 20", "about 30"]


async def test_the_service_knows_in_which_order_requests_start(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    tell = PredictionService.started

    def listen(self: PredictionService, key: str) -> None:
        started.append(self._open[key].llm)
        tell(self, key)

    monkeypatch.setattr(PredictionService, "started", listen)
    engine = StandIn()
    with served(engine.app()) as engine_url, gateway(engine_url, policy="sjf", in_flight=1) as url:
        answers = await hold(http, url, engine, [hinted("long", 300), hinted("short", 20)])
        assert len(started) == 1, "those that wait have not started"
        engine.gate.set()
        assert {status for status, _ in await answers} == {200}
    assert engine.names() == ["blocker", "short", "long"]
    assert len(started) == 3


async def test_waiting_requests_are_reordered_when_predictions_arrive(
    http: aiohttp.ClientSession, guess: Guess
) -> None:
    engine = StandIn(lengths=dict.fromkeys(["blocker", "long", "hinted", "short"], 1))
    with served(engine.app()) as engine_url, gateway(engine_url, policy="sjf", in_flight=1, predictor="fast") as url:
        guess.gate.clear()
        waiting = [asking("long", "about 800"), hinted("hinted", 300), asking("short", "about 20")]
        answers = await hold(http, url, engine, waiting)
        guess.gate.set()
        await events(http, url, answered=2, failed=1)  # the blocker's prompt ends with no number
        engine.gate.set()
        assert {status for status, _ in await answers} == {200}
        assert await metric(http, url, 'lengthwise_predictions_total{source="predictor"}') == 2
        assert await metric(http, url, 'lengthwise_predictions_total{source="hint"}') == 1
        assert await metric(http, url, 'lengthwise_predictions_total{source="prior"}') == 1
        assert await metric(http, url, "lengthwise_predictor_prediction_age_seconds_count") == 2
        assert await metric(http, url, "lengthwise_predictor_prediction_age_seconds_sum") > 0
    assert engine.names() == ["blocker", "short", "hinted", "long"]
    assert sorted(guess.predicted) == ["about 20", "about 800"], "a hint replaces the prediction"


async def test_the_order_is_that_of_the_predictions_of_fast(http: aiohttp.ClientSession) -> None:
    prompts = {
        "hi": "Hi",
        "story": "Write a long story about a dragon who learns to cook, with many details.",
        "yes": "Is 7 a prime number? Answer yes or no.",
        "tree": "Write a Python class for a binary search tree with insert, delete and tests.",
    }
    engine = StandIn(model="llama-3.1-8B", lengths=dict.fromkeys(["blocker", *prompts], 1))
    with served(engine.app()) as engine_url, gateway(engine_url, policy="sjf", in_flight=1, predictor="fast") as url:
        bodies = [asking(name, text, model="llama-3.1-8B") for name, text in prompts.items()]
        answers = await hold(http, url, engine, bodies)
        await events(http, url, answered=len(prompts) + 1)
        engine.gate.set()
        await answers
        assert await metric(http, url, "lengthwise_predictor_cpu_seconds_total") > 0
        assert await metric(http, url, 'lengthwise_predictor{predictor="fast"}') == 1
    sjf, fast = make_policy("sjf"), load_predictor("fast")

    def key(name: str) -> float:
        prediction = fast.predict([PredictionInput(prompts[name], "llama-3.1-8B", 900)])[0]
        return sjf.key(Job(name, 0.0, prediction=prediction, max_tokens=900), QueueView(), 0.0)

    assert engine.names() == ["blocker", *sorted(prompts, key=key)]


async def test_a_predictor_that_hangs_delays_no_request_and_is_counted(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, guess: Guess, clock: Clock
) -> None:
    with gateway(engine_url, policy="sjf", predictor="fast") as url:
        guess.gate.clear()
        assert (await post(http, url, asking("first", "about 8")))[0] == 200
        await until_true(guess.inside.is_set)
        clock.advance(PATIENCE_S + 1)
        assert (await post(http, url, asking("after", "about 9")))[0] == 200
        await events(http, url, asked=2, hung=1, dropped=1, answered=0)
        guess.gate.set()
        await events(http, url, answered=1)
        assert (await post(http, url, asking("again", "about 9")))[0] == 200
        await events(http, url, asked=3, answered=2, hung=1)
    assert engine.finished == 3


async def test_a_waiting_request_has_the_history_once_its_predictor_has_failed(
    http: aiohttp.ClientSession, guess: Guess
) -> None:
    engine = StandIn(lengths={"a": 5, "blocker": 5, "b": 5})
    with served(engine.app()) as engine_url, gateway(engine_url, policy="sjf", in_flight=1, predictor="fast") as url:
        assert (await post(http, url, asking("a", "no number")))[0] == 200
        guess.gate.clear()  # so that the blocker is sent before its prediction fails
        answers = await hold(http, url, engine, [asking("b", "no number")])
        guess.gate.set()
        await events(http, url, failed=3)
        engine.gate.set()
        assert {status for status, _ in await answers} == {200}
        assert await metric(http, url, 'lengthwise_predictions_total{source="prior"}') == 2
        assert await metric(http, url, 'lengthwise_predictions_total{source="history"}') == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [1, 2, 3]},
        {"prompt": [[1, 2, 3]]},
        {"prompt": ["one 1", "two 2"]},
        {"prompt": None},
        {"prompt": {"odd": 1}},
    ],
)
async def test_a_request_with_an_unreadable_prompt_is_served_without_a_prediction(
    http: aiohttp.ClientSession, engine_url: str, guess: Guess, fields: dict[str, Any]
) -> None:
    with gateway(engine_url, policy="sjf", predictor="fast") as url:
        assert (await post(http, url, body("a", **fields)))[0] == 200
        await events(http, url, asked=0)
    assert guess.calls == 0


@pytest.mark.parametrize("messages", [["no object"], [{"role": 3, "content": {"deep": []}}], [[]]])
async def test_invalid_messages_are_passed_to_the_engine(
    http: aiohttp.ClientSession, engine_url: str, guess: Guess, messages: list[Any]
) -> None:
    with gateway(engine_url, policy="sjf", predictor="fast") as url:
        async with http.post(url + CHAT, json={"messages": messages, "max_tokens": 2}) as response:
            assert response.status == 200
        await events(http, url, asked=1, failed=1)


async def test_a_list_of_one_prompt_is_that_prompt(http: aiohttp.ClientSession, engine_url: str, guess: Guess) -> None:
    with gateway(engine_url, policy="sjf", predictor="fast") as url:
        assert (await post(http, url, body("a", prompt=["about 5"])))[0] == 200
        await events(http, url, answered=1)
    assert guess.predicted == ["about 5"]


async def test_a_chat_is_rendered_with_roles_and_tools(
    http: aiohttp.ClientSession, engine_url: str, guess: Guess
) -> None:
    chat = {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "about 5"}],
        "tools": [{"type": "function", "function": {"name": "look"}}],
        "max_tokens": 3,
    }
    with gateway(engine_url, policy="sjf", predictor="fast") as url:
        async with http.post(url + CHAT, json=chat) as response:
            assert response.status == 200
        await events(http, url, answered=1)
    assert guess.predicted == ["<tools> look\n<system> Be brief.\n<user> about 5"]


@pytest.mark.parametrize("stream", [False, True])
async def test_every_answer_is_learned_from_once(
    http: aiohttp.ClientSession, guess: Guess, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    observed: list[tuple[int | None, bool]] = []
    ended = PredictionService.ended

    def noting(self: PredictionService, key: str, tokens: int | None, *, censored: bool = False) -> None:
        observed.append((tokens, censored))
        ended(self, key, tokens, censored=censored)

    monkeypatch.setattr(PredictionService, "ended", noting)
    engine = StandIn(lengths={"whole": 5})
    with served(engine.app()) as engine_url, gateway(engine_url, predictor="fast") as url:
        for sent in (body("whole", 9, prompt="1"), body("cut", 9, prompt="1"), body("several", 9, prompt="1", n=2)):
            async with http.post(url + PLAIN, json={**sent, "stream": stream}) as response:
                text = await response.text()
                assert response.status == 200
                assert stream is ("[DONE]" in text)
                assert not stream or "usage" not in text
        await events(http, url, observed=2)
    assert observed == [(5, False), (9, True), (None, False)]
    del guess


async def test_the_usage_of_a_stream_is_requested_and_hidden_from_a_client_that_did_not_ask_for_it(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, guess: Guess
) -> None:

    async def streamed(url: str, **fields: Any) -> str:
        async with http.post(url + PLAIN, json=body("a", 3, prompt="1", stream=True, **fields)) as response:
            return await response.text()

    with gateway(engine_url, predictor="fast") as url:
        plain = await streamed(url)
        asked = await streamed(url, stream_options={"include_usage": True})
        refused = await streamed(url, stream_options={"include_usage": False})
    with gateway(engine_url, predictor="fast", stream_usage=False) as url:
        off = await streamed(url)
    with gateway(engine_url, predictor="none", learning=False) as url:
        none = await streamed(url)
    assert plain == refused == off == none
    assert asked.replace('data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n', "") == plain
    options = [sent.get("stream_options") for sent in engine.bodies]
    assert options == [{"include_usage": True}] * 3 + [None, {"include_usage": True}]


async def test_an_answer_whose_client_disconnects_is_observed_as_censored(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, guess: Guess
) -> None:
    engine.token_s = 0.01
    with gateway(engine_url, predictor="fast") as url:
        async with http.post(url + PLAIN, json=asking("a", "about 5", stream=True)) as response:
            for _ in range(4):
                await response.content.readany()
            response.close()
        await until_true(lambda: engine.aborted == 1)
        await events(http, url, observed=1)


async def test_under_fcfs_nothing_is_predicted_until_the_policy_changes(
    http: aiohttp.ClientSession, engine_url: str, guess: Guess
) -> None:
    with gateway(engine_url, policy="fcfs", predictor="fast") as url:
        await post(http, url, asking("a", "about 5"))
        await events(http, url, asked=0)
        assert guess.calls == 0
        async with http.post(url + "/lengthwise/v1/policy", json={"policy": "sjf"}, headers=ADMIN) as response:
            assert response.status == 200
        await post(http, url, asking("b", "about 5"))
        await events(http, url, answered=1)


async def test_nothing_is_predicted_for_a_request_that_is_refused(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, guess: Guess
) -> None:
    engine.gate.clear()
    with gateway(engine_url, policy="sjf", predictor="fast", in_flight=1, max_waiting=0) as url:
        first = asyncio.create_task(post(http, url, asking("runs", "about 5")))
        await until_true(lambda: engine.running == 1)
        async with http.post(url + PLAIN, json=asking("too many", "about 5")) as response:
            assert response.status == 429
        await events(http, url, asked=1)
        engine.gate.set()
        assert (await first)[0] == 200


async def test_an_engine_with_our_scheduler_gets_the_gateways_prediction(
    http: aiohttp.ClientSession, guess: Guess
) -> None:
    engine = StandIn(lengths=dict.fromkeys(["blocker", "predicted", "merged", "hinted"], 1))
    options: dict[str, Any] = {"policy": "sjf", "predictor": "fast", "in_flight": 1}
    with served(engine.app()) as engine_url, gateway({"url": engine_url, "kind": "lengthwise"}, **options) as url:
        waiting = [
            asking("predicted", "about 300"),
            asking("merged", "about 20", vllm_xargs={"other": 1}),
            hinted("hinted", 7),
        ]
        answers = await hold(http, url, engine, waiting)
        await events(http, url, answered=2, failed=1)  # the blocker's prompt ends with no number
        engine.gate.set()
        await answers
    xargs: dict[str, Any] = dict(zip(engine.names(), (sent.get("vllm_xargs") for sent in engine.bodies), strict=True))
    assert xargs["blocker"] is None
    assert math.exp(xargs["predicted"]["length_mu"]) == pytest.approx(300, rel=0.01)
    assert xargs["predicted"]["length_sigma"] == pytest.approx(0.1)
    assert xargs["merged"]["other"] == 1
    assert math.exp(xargs["merged"]["length_mu"]) == pytest.approx(20, rel=0.01)
    assert xargs["hinted"] == {"expected_tokens": 7.0}


async def test_a_request_without_a_prediction_yet_is_sent_at_once(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, guess: Guess
) -> None:
    guess.gate.clear()
    with gateway({"url": engine_url, "kind": "lengthwise"}, policy="sjf", predictor="fast") as url:
        assert (await post(http, url, asking("a", "about 300")))[0] == 200
    assert "vllm_xargs" not in engine.bodies[0], "the engine predicts it itself"


@pytest.mark.parametrize("options", [{"kind": "openai"}, {"policy": "fcfs"}, {"predictor": "none"}])
async def test_no_prediction_is_forwarded_to_other_engines_or_without_a_predictor(
    http: aiohttp.ClientSession, guess: Guess, options: dict[str, Any]
) -> None:
    engine = StandIn(lengths=dict.fromkeys(["blocker", "a"], 1))
    settings = {"policy": "sjf", "predictor": "fast", "in_flight": 1, "kind": "lengthwise", **options}
    kind = settings.pop("kind")
    with served(engine.app()) as engine_url, gateway({"url": engine_url, "kind": kind}, **settings) as url:
        answers = await hold(http, url, engine, [asking("a", "about 300")])
        if kind == "openai":
            await events(http, url, answered=1)
        engine.gate.set()
        await answers
    assert not any("vllm_xargs" in sent for sent in engine.bodies)


async def learn(http: aiohttp.ClientSession, url: str) -> None:
    for _ in range(10):
        for name in ("chatty", "terse"):
            assert (await post(http, url, asking(name, name * 200)))[0] == 200


async def test_prefix_memory_orders_by_the_lengths_of_the_same_prefix(http: aiohttp.ClientSession) -> None:
    engine = StandIn(lengths={"blocker": 1, "chatty": 400, "terse": 3})
    with (
        served(engine.app()) as engine_url,
        gateway(engine_url, policy="sjf", in_flight=1) as url,
    ):
        await learn(http, url)
        answers = await hold(http, url, engine, [asking("chatty", "chatty" * 200), asking("terse", "terse" * 200)])
        engine.gate.set()
        await answers
        async with http.get(url + "/health") as response:
            assert (await response.json())["learning"] == "on"
    assert engine.names()[-2:] == ["terse", "chatty"]


@pytest.mark.parametrize("wrap", [lambda ids: ids, lambda ids: [ids]])
async def test_prefix_memory_learns_from_prompts_of_token_ids(
    http: aiohttp.ClientSession, wrap: Callable[[list[int]], list[Any]]
) -> None:
    engine = StandIn(lengths={"blocker": 1, "chatty": 400, "terse": 3})
    prompts = {name: wrap(list(range(first, first + 128))) for name, first in (("chatty", 1), ("terse", 1000))}
    asked = [body(name, 500, prompt=ids) for name, ids in prompts.items()]
    with (
        served(engine.app()) as engine_url,
        gateway(engine_url, policy="sjf", in_flight=1) as url,
    ):
        for sent in asked * 5:
            assert (await post(http, url, sent))[0] == 200
        await post(http, url, body("several", prompt=[[1, 2], [3, 4]]))
        assert await metric(http, url, "lengthwise_prefix_memory_nodes") == 2 + 2 * 2  # tenants, blocks of 64 ids
        answers = await hold(http, url, engine, asked)
        engine.gate.set()
        await answers
    assert engine.names()[-2:] == ["terse", "chatty"]


async def test_engines_behind_one_gateway_share_its_prefix_memory(http: aiohttp.ClientSession) -> None:
    engines = [StandIn(lengths={"chatty": 400, "terse": 3}) for _ in range(2)]
    with served(engines[0].app()) as first, served(engines[1].app()) as second:
        with gateway(first, second, router="round_robin") as url:
            await learn(http, url)
            # Two tenants, and the blocks of 256 bytes of their prompts: 4 of 1,200 and 3 of 1,000.
            assert await metric(http, url, "lengthwise_prefix_memory_nodes") == 2 + 4 + 3
        assert min(len(engine.bodies) for engine in engines) > 0


async def test_a_template_is_named_by_header_or_metadata(http: aiohttp.ClientSession) -> None:
    engine = StandIn()
    with served(engine.app()) as engine_url, gateway(engine_url) as url:
        nodes = "lengthwise_prefix_memory_nodes"
        await post(http, url, body("a"))
        assert await metric(http, url, nodes) == 1  # the tenant
        await post(http, url, body("a", metadata={"template": "summary"}))
        assert await metric(http, url, nodes) == 2
        async with http.post(url + PLAIN, json=body("a"), headers={"x-lengthwise-template": "summary"}) as response:
            assert response.status == 200
        assert await metric(http, url, nodes) == 2
        await post(http, url, body("a", metadata="anything"))
        assert await metric(http, url, nodes) == 2


async def test_metrics_and_dashboard_show_what_learning_has_brought(
    http: aiohttp.ClientSession, guess: Guess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengthwise.gateway.dashboard._EVERY_S", 0.01)
    engine = StandIn(lengths={f"r{n}": n for n in range(1, 7)})
    with served(engine.app()) as engine_url, gateway(engine_url, policy="sjf", in_flight=1) as url:
        async with http.get(url + "/lengthwise/v1/events") as stream:
            assert (await learned_words(stream))["alone"] is None
    with served(engine.app()) as engine_url, gateway(engine_url, policy="sjf", predictor="fast", in_flight=1) as url:
        for n in range(1, 7):  # the predictor has the opposite order
            engine.gate.clear()
            answer = asyncio.create_task(post(http, url, asking(f"r{n}", f"about {100 - n}")))
            await events(http, url, answered=n)
            engine.gate.set()
            assert (await answer)[0] == 200
        assert await metric(http, url, "lengthwise_learned_answers_total") == 6
        tau = {name: await metric(http, url, f'lengthwise_prediction_tau{{predictions="{name}"}}') for name in TAUS}
        assert tau["alone"] == pytest.approx(-1.0)
        assert -1.0 <= tau["learned"] <= 1.0
        async with http.get(url + "/lengthwise/v1/events") as stream:
            shown = await learned_words(stream)
        assert shown == {"answers": 6, "recent": 6, "alone": -1.0, "learned": round(tau["learned"], 3)}
    with served(engine.app()) as engine_url, gateway(engine_url, learning=False) as url:
        async with http.get(url + "/lengthwise/v1/events") as stream:
            assert await learned_words(stream) is None


@pytest.mark.parametrize("observe", [False, True])
async def test_a_predictor_of_another_package_learns_from_the_answers_and_its_state_is_kept(
    http: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observe: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path.cwd()}:{Path.cwd() / 'src'}")  # of the predictor's process
    engine = StandIn(lengths={"a": 3, "b": 13})
    learner = "tests.conformance.outside_predictor:LastLength"
    options = {"state": str(tmp_path), "observe": observe, "hold_timeout_s": 0.0, "log": tmp_path / "log"}
    with served(engine.app()) as engine_url, gateway(engine_url, predictor=learner, **options) as url:
        for name in ("a", "b"):
            assert (await post(http, url, asking(name, name)))[0] == 200
        await events(http, url, learned=1, unlearned=1)
    kept = StateFile(tmp_path / "gateway.state").read()
    assert (kept.predictor, kept.parts["predictor"]) == (learner, b'{"a": 3}')
