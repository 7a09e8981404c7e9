"""A body is scanned without being parsed: its outline is the same JSON, and it takes little more than its bytes."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.gateway import json_outline
from lengthwise.gateway.bodies import ChatBody, CompletionBody, MessagesBody, ResponsesBody, parse
from lengthwise.gateway.errors import ApiError
from lengthwise.gateway.json_fields import LARGE_BODY, edit_fields, value_of
from lengthwise.gateway.json_outline import NotAnObjectError, TooComplexError, fields_of, outline, scan

TEXTS = (
    st.sampled_from(["", "x", "\\", '"', 'a"b\\\\"c', "{[,:]}", "é😀", "\u2028", "y\n\\" * 90, "é😀" * 90]) | st.text()
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS | st.just([1] * 300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from(["model", "input", "tools", 'quo"te', "\\"]), VALUES)


@given(
    sent=OBJECTS, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]), step=st.sampled_from([3, 7, 64, 1 << 18])
)
def test_an_outline_with_its_references_replaced_is_the_same_json(
    sent: dict[str, Any], ascii_only: bool, indent: int | None, step: int
) -> None:
    try:
        raw = json.dumps(sent, ensure_ascii=ascii_only, indent=indent).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_outline, "_STEP", step)
        assert {f.name: json.loads(raw[f.value : f.end]) for f in fields_of(raw)} == sent
        found = outline(raw, ["model"], ["input", "tools"])

    def restored(value: Any) -> Any:
        if isinstance(value, list):
            return [restored(each) for each in value]
        if isinstance(value, dict):
            return {restored(name): restored(each) for name, each in value.items()}
        if not isinstance(value, str) or not value.startswith(found.mark):
            return value
        begin, end = found.spans[int(value.removeprefix(found.mark)[:-1])].tolist()
        return json.loads(raw[begin:end])

    assert restored(json.loads(found.json)) == {k: v for k, v in sent.items() if k in ("model", "input", "tools")}


@given(
    text=st.text(alphabet=st.sampled_from(['"', "\\", "x", "é", "😀", "\n", "\x00"]), min_size=90),
    ascii_only=st.booleans(),
)
def test_a_text_that_is_left_out_is_decoded_in_any_pieces(text: str, ascii_only: bool) -> None:
    raw = json.dumps({"prompt": text * 4}, ensure_ascii=ascii_only).encode()
    found = outline(raw, [], ["prompt"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_outline, "_TEXT_STEP", 13)
        expanded = b"".join(found.expand(json.loads(found.json)["prompt"].encode()))
    assert expanded.decode() == text * 4


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"[1,2]", b"7", b'{"a":1', b'{"a":1}}', b'{"a":1} x', b'x{"a":1}', b"{a:1}", b'{"a":"b}', b'{"a":1]'],
)
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(NotAnObjectError):
        fields_of(raw)


@pytest.mark.parametrize(
    ("raw", "limit"),
    [
        (b'{"a":[' + b"0," * (1 << 20) + b"0]}", "1048576 elements"),
        (b'{"a":[' + b"[]," * (1 << 16) + b"0]}", "65536 objects and arrays"),
        (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "200 objects and arrays inside"),
        (b"{" + b'"a":1,' * 1100 + b'"b":1}', "1024 fields"),
    ],
    ids=["elements", "containers", "depth", "fields"],
)
def test_beyond_a_limit_a_body_is_refused(raw: bytes, limit: str) -> None:
    with pytest.raises(TooComplexError, match=limit):
        scan(raw)


def test_what_is_in_texts_counts_nothing() -> None:
    found = scan(json.dumps({"prompt": '[{",:' * 300_000}).encode())
    assert (found.elements, found.containers) == (1, 1)


LONG = "word " * 20_000
TURN = {"role": "user", "content": LONG}


@pytest.mark.parametrize(
    ("model", "sent"),
    [
        (CompletionBody, {"prompt": LONG}),
        (CompletionBody, {"prompt": [LONG]}),
        (CompletionBody, {"prompt": [LONG, LONG]}),
        (CompletionBody, {"prompt": list(range(30_000))}),
        (CompletionBody, {"prompt": [list(range(30_000))]}),
        (CompletionBody, {"prompt": [[*range(30_000)], [1]], "n": 3}),
        (CompletionBody, {"prompt": [1.5] * 30_000}),
        (CompletionBody, {"prompt": ["a, b"] * 30_000, "stream": True, "stream_options": {"include_usage": False}}),
        (CompletionBody, {"prompt": [[1, 2]] * 15_000, "n": 2}),
        (ChatBody, {"messages": [{"role": "system", "content": "é😀\n" * 20_000}, TURN]}),
        (
            ChatBody,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}, {"type": "image_url"}]}]},
        ),
        (ChatBody, {"messages": [TURN], "tools": [{"function": {"name": "f", "description": LONG}}]}),
        (ChatBody, {"messages": [1], "pad": LONG}),
        (ChatBody, {"messages": [TURN], "metadata": {"template": "t"}, "user": "u", "reasoning_effort": "low"}),
        (ResponsesBody, {"input": LONG, "instructions": LONG}),
        (ResponsesBody, {"input": [TURN, {"type": "function_call_output", "output": LONG}]}),
        (MessagesBody, {"messages": [TURN], "system": LONG, "metadata": {"user_id": "u"}}),
    ],
)
def test_a_large_body_is_read_as_if_it_were_parsed_whole(model: type[CompletionBody], sent: dict[str, Any]) -> None:
    raw = json.dumps({"model": "m", "max_tokens": 9, **sent}).encode()
    assert len(raw) > LARGE_BODY
    whole, read = model.model_validate_json(raw), parse(model, raw)
    jobs = [body.job("1", 0.0, {}) for body in (whole, read)]
    for body in (whole, read):
        body.condense()
    assert list(jobs[0].blocks) == list(jobs[1].blocks)
    fields = ("prompt_tokens", "llm", "tenant", "max_tokens")
    assert [getattr(jobs[0], name) for name in fields] == [getattr(jobs[1], name) for name in fields]
    names = ("readable", "one_answer", "answers", "lacks_usage", "switch", "end_user", "llm", "limit")
    if model is not MessagesBody:  # its user is in the metadata, which are let go once the job is made
        assert [getattr(whole, name) for name in names] == [getattr(read, name) for name in names]
    assert whole.text_or_none() == read.text_or_none()
    assert whole.scopes(jobs[0], {}).names.tolist() == read.scopes(jobs[1], {}).names.tolist()


def test_a_field_of_a_large_body_is_found_and_edited() -> None:
    raw = json.dumps({"vllm_xargs": {"a": 1}, "prompt": LONG, "model": "m", "vllm": 1}).encode()
    assert value_of(raw, "vllm_xargs") == {"a": 1}
    assert json.loads(edit_fields(raw, {"model": b'"n"', "vllm": None})) == {
        "vllm_xargs": {"a": 1},
        "prompt": LONG,
        "model": "n",
    }


@pytest.mark.parametrize("field", ["model", "user", "priority"])
def test_a_field_that_is_parsed_whole_is_limited(field: str) -> None:
    with pytest.raises(ApiError, match=f"1048576 bytes in '{field}'"):
        parse(CompletionBody, json.dumps({"prompt": "x", field: "1" * (1 << 21)}).encode())


def _many(element: bytes) -> Callable[[int], bytes]:
    return lambda count: b'{"model":"m","prompt":[' + b",".join([element] * count) + b"]}"


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (_many(b"{}"), 65_000),
        (_many(b"[]"), 65_000),
        (_many(b'{"":0}'), 65_000),
        (_many(b'""'), 1_000_000),
        (_many(b"7"), 1_000_000),
        (_many(b"100000"), 1_000_000),
        (lambda count: b'{"model":"m","metadata":[' + b",".join([b"[]"] * count) + b"]}", 65_000),
        (
            lambda count: json.dumps({"model": "m", "prompt": "😀" + "x" * count}, ensure_ascii=False).encode(),
            8_000_000,
        ),
    ],
    ids=["objects", "arrays", "members", "texts", "digits", "ids", "metadata", "text"],
)
def test_what_is_held_of_a_body_is_at_most_four_times_its_bytes(make: Callable[[int], bytes], count: int) -> None:
    raw = make(count)
    tracemalloc.start()
    try:
        body = parse(CompletionBody, raw)
        job = body.job("1", 0.0, {})
        body.condense()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held <= 3 * len(raw), "beside the body itself"
    assert body.kept_bytes <= 80_000
    assert peak <= 3 * len(raw) + (32 << 20), "while it is read, one at a time of a tenant"
    assert job.prompt_tokens >= 0
