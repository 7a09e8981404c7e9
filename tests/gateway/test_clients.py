"""Published clients work with the gateway by changing only their base URL."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.gateway.engine import StandIn, free_port, served
from tests.gateway.helpers import gateway

TURNS: Any = [{"role": "user", "content": "hello"}]
SCRIPT = Path(__file__).with_name("openai_client.js")


@pytest.fixture
def gateway_url(engine: StandIn, engine_url: str) -> Iterator[str]:
    """A gateway with prediction and one alias."""
    with gateway(engine_url, predictor="fast", models={"stand-in": {"aliases": ["gpt-4o"]}}) as url:
        yield url


@pytest.fixture
def client(gateway_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway_url + "/v1", api_key="sk-any", max_retries=0) as client:
        yield client


def test_openai_chat_and_completions_whole_and_streamed(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(model="gpt-4o", messages=TURNS, max_tokens=3)
    assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == ("x x x ", "length")
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 3
    chunks = list(client.chat.completions.create(model="gpt-4o", messages=TURNS, max_tokens=3, stream=True))
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["t0 ", "t1 ", "t2 "]  # and no usage event
    asked = client.chat.completions.create(
        model="gpt-4o", messages=TURNS, max_tokens=3, stream=True, stream_options={"include_usage": True}
    )
    assert [chunk.usage.completion_tokens for chunk in asked if chunk.usage] == [3]
    plain = client.completions.create(model="stand-in", prompt="hello", max_tokens=2)
    assert plain.choices[0].text == "x x "
    texts = client.completions.create(model="stand-in", prompt="hello", max_tokens=2, stream=True)
    assert [chunk.choices[0].text for chunk in texts] == ["t0 ", "t1 "]


def test_openai_responses_whole_streamed_and_retrieved(client: openai.OpenAI, engine: StandIn) -> None:
    whole = client.responses.create(model="gpt-4o", input="hello", instructions="be brief", max_output_tokens=3)
    assert (whole.output_text, whole.status) == ("x x x ", "incomplete")
    events = list(client.responses.create(model="gpt-4o", input="hello", max_output_tokens=3, stream=True))
    assert [event.type for event in events][-1] == "response.completed"
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == ["t0 ", "t1 ", "t2 "]
    engine.stored.add("resp_1")
    assert client.responses.retrieve("resp_1").id == "resp_1"


def test_openai_embeddings_audio_and_models(client: openai.OpenAI, engine: StandIn) -> None:
    assert client.embeddings.create(model="gpt-4o", input="hello").data[0].embedding == [0.5, -0.25]
    assert client.audio.transcriptions.create(model="gpt-4o", file=("a.wav", b"RIFF")).text == "transcribed"
    speech = client.audio.speech.create(model="gpt-4o", voice="alloy", input="hello")
    assert speech.content == b"\x00\xffRIFF"
    assert [model.id for model in client.models.list()] == ["stand-in", "gpt-4o"]
    assert client.models.retrieve("gpt-4o").id == "gpt-4o"
    assert b'"model":"stand-in"' in engine.others[0][2].replace(b" ", b"")


def test_openai_raises_its_own_errors(client: openai.OpenAI, engine: StandIn) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="other", messages=TURNS)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as invalid:
        client.chat.completions.create(model="gpt-4o", messages=TURNS, max_tokens=-1)
    assert invalid.value.param == "max_tokens"
    engine.mode = "break"
    with pytest.raises(openai.APIError, match="broke off"):
        list(client.chat.completions.create(model="gpt-4o", messages=TURNS, max_tokens=9, stream=True))
    *_, last = client.responses.create(model="gpt-4o", input="hello", max_output_tokens=9, stream=True)
    assert last.type == "error"
    assert last.code == "engine_broken"


def test_openai_retries_while_no_engine_is_up(engine: StandIn) -> None:
    port = free_port()
    with (
        gateway(f"http://127.0.0.1:{port}", hold_timeout_s=0.0) as url,
        openai.OpenAI(base_url=url + "/v1", api_key="sk-any", max_retries=8) as client,
    ):
        with pytest.raises(openai.InternalServerError) as refused:
            client.with_options(max_retries=0).chat.completions.create(model="stand-in", messages=TURNS)
        assert refused.value.code == "no_engine"
        with served(engine.app(), port):
            assert client.chat.completions.create(model="stand-in", messages=TURNS, max_tokens=1).choices


def test_anthropic_messages_whole_streamed_and_failing(gateway_url: str, engine: StandIn) -> None:
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=gateway_url, api_key="sk-any", max_retries=0) as client:
        request: dict[str, Any] = {"model": "gpt-4o", "messages": TURNS, "max_tokens": 3, "system": "be brief"}
        whole = client.messages.create(**request)
        assert (whole.content[0].text, whole.stop_reason, whole.usage.output_tokens) == ("x x x ", "max_tokens", 3)
        with client.messages.stream(**request) as stream:
            assert "".join(stream.text_stream) == "t0 t1 t2 "
            assert stream.get_final_message().usage.output_tokens == 3
        with pytest.raises(anthropic.NotFoundError, match="is not served here") as unknown:
            client.messages.create(**{**request, "model": "other"})
        assert unknown.value.body["error"]["type"] == "not_found_error"
        engine.mode = "break"
        with (
            pytest.raises(anthropic.APIStatusError, match="broke off"),
            client.messages.stream(**{**request, "max_tokens": 9}) as stream,
        ):
            stream.until_done()


@pytest.fixture
def node() -> str:
    """Node, if it finds the openai package (NODE_PATH)."""
    node = shutil.which("node")
    if node is None or subprocess.run([node, "-e", "require('openai')"], capture_output=True, check=False).returncode:
        pytest.skip("node does not find the package openai")
    return node


def test_openai_for_javascript(gateway_url: str, engine: StandIn, node: str) -> None:
    engine.stored.add("resp_1")
    run = subprocess.run([node, SCRIPT, gateway_url], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {
        "chat": "x x x ",
        "streamed": "t0 t1 t2 ",
        "completion": "x x ",
        "response": "x x x ",
        "events": "t0 t1 t2 ",
        "embedding": [0.5, -0.25],
        "models": ["stand-in", "gpt-4o"],
        "unknown": [404, "model_not_found"],
    }
