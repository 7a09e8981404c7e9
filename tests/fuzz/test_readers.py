"""No bytes break a reader: what is valid is read, and the rest is refused in one line by the error that it declares.

`make fuzz SEED=7` runs the same with another seed and many more examples; a failure prints the bytes, which go to
`corpus` with the fix. CI runs fixed seeds.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lengthwise.client.http1 import ConnectionLostError
from lengthwise.client.scrape import read_gauges, read_memory
from lengthwise.client.sse import EventReader
from lengthwise.errors import InputError
from lengthwise.gateway.bodies import ChatBody, CompletionBody, MessagesBody, ResponsesBody, parse
from lengthwise.gateway.config import read_config
from lengthwise.gateway.errors import ApiError
from lengthwise.gateway.json_fields import LARGE_BODY
from lengthwise.gateway.keys import read_keys
from lengthwise.gateway.streaming import AnswerMeter
from lengthwise.gateway.usage import MessagesMeter, ResponsesMeter
from lengthwise.predictors.contract import as_logt
from lengthwise.predictors.model_file import read_model_file, write_model_file
from lengthwise.predictors.resolve import load_predictor
from lengthwise.predictors.state_file import StateFile
from lengthwise.traffic.reader import read_traffic
from tests.client.test_http1 import answering, connected, exchange
from tests.fuzz import corpus
from tests.gateway.test_http_protocol import Connection

T = TypeVar("T")

EXAMPLES: Final = int(os.environ.get("LENGTHWISE_FUZZ", "0"))
"""Examples of each reader, at random; 0: a few with a fixed seed."""
TOKENS: Final = [
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"',
        b"\\",
        b"\n",
        b"\r\n",
        b"\n\n",
        b"\r",
        b" ",
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
    ),
    *(
        b"0",
        b"-1",
        b"1e308",
        b"1e999",
        b"NaN",
        b"Infinity",
        b"9" * 400,
        b"9" * 5000,
        b"true",
        b"null",
        b'"5"',
        b"[1]",
        b"{}",
    ),
    *(
        b'"prompt":',
        b'"model":',
        b'"messages":',
        b'"usage":',
        b'"n":',
        b'"stream":true,',
        b'"vllm_xargs":{',
        b'"\\ud800"',
    ),
    *(
        b"data: ",
        b"event: ",
        b"data: [DONE]\n\n",
        b"content-length: 5\r\n",
        b"transfer-encoding: chunked\r\n",
        b"0\r\n\r\n",
    ),
    *(b"\xf0\x9f\x98\x80", b"\xe2\x80\xa8", b"&a ", b"*a", b"${HOME}", b"- ", b"? ", b"!!binary ", b"<<: "),
]
# Without a search for the smallest bytes, which takes minutes: those found are short.
SEEDED: Final = settings(derandomize=not EXAMPLES, database=None, phases=[Phase.generate])
MODELS: Final = (CompletionBody, ChatBody, ResponsesBody, MessagesBody)
MAX_DAMAGED: Final = 6000
"""Longer members of the corpus are read as they are."""


@st.composite
def damaged(draw: st.DrawFn, whole: Sequence[bytes]) -> bytes:
    """Draw a member of the corpus with pieces cut, repeated, replaced or inserted."""
    data = draw(st.sampled_from([each for each in whole if len(each) <= MAX_DAMAGED]))
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(data)))
        end = min(len(data), begin + draw(st.sampled_from([0, 0, 1, 4, 40, 4000])))
        piece = draw(st.sampled_from(TOKENS) | st.binary(max_size=6) | st.just(data[begin:end]))
        data = data[:begin] + piece * draw(st.sampled_from([1, 1, 1, 2, 250])) + data[end:]
    return data


def tried(call: Callable[[], T], kind: type[Exception]) -> tuple[T | None, Any]:
    """Return what a call returns, and the error of this kind that it raises."""
    try:
        return call(), None
    except kind as error:
        return None, error


def read_body(data: bytes) -> None:
    """A body is read or refused with 4xx; what is sent on is read again; padded to a large one it is read alike."""
    for model in MODELS:
        body, refused = tried(lambda: parse(model, data), ApiError)  # noqa: B023  (called at once)
        if body is None:
            assert 400 <= refused.status < 500
            assert "\n" not in refused.message
            continue
        job, refused = tried(lambda: body.job("1", 0.0, {}), ApiError)  # noqa: B023
        if job is None:
            assert refused.status == 400
            continue
        _ = body.text_or_none(), body.scopes(job, {}), body.class_name({}), body.answers, body.one_answer
        _check_large(model, data, body)
        sent = body.restrict(data, priority=False, lengths=False, limits=False)
        sent = body.rename(sent, "other")
        sent = body.with_usage(sent) if body.lacks_usage else sent
        sent = body.for_engine(sent, job, 0.0, prediction=True, tenant="t")
        sent = body.with_priority(sent, 3)
        body.condense()
        again = parse(model, sent)
        assert (again.priority, again.hint if again.vllm_xargs is None else None) == (3, None)
        assert again.model in (None, "other")


def _check_large(model: type[CompletionBody], data: bytes, body: CompletionBody) -> None:
    if len(data) >= LARGE_BODY:
        return
    large, refused = tried(lambda: parse(model, data + b" " * LARGE_BODY), ApiError)
    if large is None:
        assert refused.code == "body_too_complex", "the outline refuses what is valid"
        return
    jobs = [each.job("1", 0.0, {}) for each in (body, large)]
    assert (jobs[0].prompt_tokens, list(jobs[0].blocks)) == (jobs[1].prompt_tokens, list(jobs[1].blocks))
    assert (body.llm, body.end_user, body.limit, body.hint) == (large.llm, large.end_user, large.limit, large.hint)
    assert (body.one_answer, body.readable) == (large.one_answer, large.readable)
    assert body.answers == large.answers or not _is_prompt(body.prompt)
    assert body.text_or_none() == large.text_or_none()


def _is_prompt(prompt: object) -> bool:
    """Whether a prompt has the API's format; an engine refuses others."""
    each: list[Any] = prompt if isinstance(prompt, list) else [prompt]
    if all(isinstance(one, list) for one in each):
        return all(type(token) is int for one in each for token in one)
    return len({type(one) for one in each}) == 1 and type(each[0]) in (str, int)


def read_headers(data: bytes) -> None:
    """Headers are read, or refused with 400."""
    pairs = [line.partition(b": ") for line in data.split(b"\n")]
    headers = {name.lower(): value for name, _, value in pairs}
    body = CompletionBody(prompt="x")
    job, refused = tried(lambda: body.job("1", 0.0, headers), ApiError)
    if job is None:
        assert refused.status == 400
        return
    _ = body.class_name(headers), body.scopes(job, headers)
    assert all(0 < value < 1e9 for value in job.limits_left(0.0).values())


def read_head(data: bytes) -> None:
    """Bytes of a client are answered, and its connection ends."""

    async def check() -> None:
        connection = Connection()
        connection.protocol.data_received(data)
        await connection.run()
        connection.loop.advance(1000)
        await connection.run()
        assert connection.transport.is_closing()
        assert all(write.startswith(b"HTTP/1.1 ") for write in connection.transport.writes)

    asyncio.run(check())


def read_answer(data: bytes) -> None:
    """Bytes of an engine are an answer or a lost connection."""

    async def check() -> None:
        async with connected(answering(data, close=True)) as pool:
            try:
                status, _ = await exchange(pool)
                assert 100 <= status <= 999
            except ConnectionLostError:
                pass
            assert not pool.busy

    asyncio.run(check())


def read_stream(data: bytes) -> None:
    """An answer is measured whatever it holds, and passes unchanged where nothing is hidden or renamed."""
    for make in (AnswerMeter, ResponsesMeter, MessagesMeter):
        for hide in (False, True):
            whole, lines, pieces = make(hide_usage=hide), make(hide_usage=hide), make(hide_usage=hide)
            assert whole.whole(data) == data
            passed = lines.lines(EventReader().feed(data + b"\n"))
            reader, head = EventReader(), data[:3000]
            cut = b"".join(pieces.lines(reader.feed(head[at : at + 7])) for at in range(0, len(head), 7))
            assert hide or (passed == data + b"\n" and head.startswith(cut))
            for meter in (whole, lines, pieces):
                assert (meter.tokens or 0) >= 0
                assert (meter.prompt_tokens or 0) >= 0
                _ = meter.length, meter.finish_reason, meter.next_event, meter.counted


def _refused(read: Callable[[Path], object], data: bytes, name: str) -> None:
    """Read a file; an error is one line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        _, refused = tried(lambda: read(path), InputError)
        assert refused is None or (str(refused).strip() and "\n" not in str(refused))


def read_configuration(data: bytes) -> None:
    """A configuration is valid, or refused without showing its secrets."""
    _refused(lambda path: read_config(path, overrides={}, defaults={}), data, "fleet.yaml")


def read_key_file(data: bytes) -> None:
    """A keys file is valid or refused."""
    _refused(read_keys, data, "keys.json")


def read_log(data: bytes) -> None:
    """A traffic log is read, as far as it is complete, or refused."""
    _refused(lambda path: read_traffic(path.parent), data, "traffic-1-1.jsonl")


def read_model(data: bytes) -> None:
    """A model file is intact or refused."""
    _refused(load_predictor, data, "m.lw")
    _refused(read_model_file, data, "m.lw")


def read_state(data: bytes) -> None:
    """What was learned is read, or not used."""
    _refused(lambda path: StateFile(path).read(), data, "gateway.state")


def read_metrics(data: bytes) -> None:
    """The metrics of an engine are numbers, or not read."""
    text = data.decode("utf-8", "replace")
    gauges, memory = read_gauges(text), read_memory(text)
    assert gauges is None or min(gauges.running, gauges.waiting) >= 0
    assert memory is None or memory.kv_tokens >= 0


READERS: Final[dict[str, tuple[Callable[[bytes], None], list[bytes], int]]] = {
    "bodies": (read_body, corpus.BODIES, 150),
    "headers": (read_headers, corpus.HEADERS, 150),
    "heads": (read_head, corpus.HEADS, 150),
    "answers of engines": (read_answer, corpus.ANSWERS, 80),
    "streams": (read_stream, corpus.STREAMS, 150),
    "configurations": (read_configuration, corpus.CONFIGS, 80),
    "keys": (read_key_file, corpus.KEYS, 80),
    "logs": (read_log, corpus.LOGS, 80),
    "model files": (read_model, corpus.MODELS, 80),
    "states": (read_state, corpus.STATES, 80),
    "metrics": (read_metrics, corpus.METRICS, 80),
}


@pytest.mark.parametrize(
    ("read", "data"),
    [
        pytest.param(read, data, id=f"{name}-{number}")
        for name, (read, whole, _) in READERS.items()
        for number, data in enumerate(whole)
    ],
)
def test_what_has_broken_a_reader_once_does_not_again(read: Callable[[bytes], None], data: bytes) -> None:
    read(data)


@pytest.mark.parametrize("name", READERS)
def test_no_bytes_break_a_reader(name: str) -> None:
    read, whole, examples = READERS[name]

    @settings(SEEDED, max_examples=EXAMPLES or examples)
    @given(damaged(whole))
    def check(data: bytes) -> None:
        read(data)

    check()


@settings(SEEDED, max_examples=EXAMPLES or 30)
@given(st.data())
def test_parts_of_a_model_file_that_were_replaced_are_refused_or_predict(data: st.DataObject) -> None:
    parts = corpus.model_parts()
    name = data.draw(st.sampled_from(sorted(name for name, part in parts.items() if len(part) <= MAX_DAMAGED)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.lw"
        card = json.loads(json.dumps({"kind": "fast", "name": "t", "data": "none", "licences": [], "limits": "all"}))
        write_model_file(path, card, {**parts, name: data.draw(damaged([parts[name]]))})
        loaded, refused = tried(lambda: load_predictor(path), InputError)
        if loaded is None:
            assert "\n" not in str(refused)
            return
        found = as_logt(loaded.predict(["one text"], ["llama"]))
        assert np.isfinite([found.mu[0], found.sigma[0]]).all()
