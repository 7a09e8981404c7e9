import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.forced_lengths import FIELD, ForcedLengths, forced

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.integers(1, 10_000), st.dictionaries(st.text(), JSON_VALUES, max_size=3))
def test_a_forced_length_replaces_max_tokens_and_nothing_else(length: int, others: dict[str, Any]) -> None:
    others = {name: each for name, each in others.items() if name not in ("max_tokens", "vllm_xargs")}
    body = json.dumps({**others, "max_tokens": 2048, "vllm_xargs": {FIELD: length, "kept": 1}}).encode()
    assert json.loads(forced(body)) == {**others, "max_tokens": length, "vllm_xargs": {"kept": 1}}


def test_a_body_without_a_forced_length_stays_as_it_is() -> None:
    body = b'{"prompt": "x",  "max_tokens": 5}'
    assert forced(body) == body


def test_the_server_gets_the_changed_body_in_one_part_with_its_length() -> None:
    seen: dict[str, Any] = {}

    async def server(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        seen.update(body=message["body"], more=message["more_body"], headers=dict(scope["headers"]))
        seen["next"] = await receive()

    parts = [b'{"max_tokens": 9, "vllm_xargs": {"forced_', b'tokens": 3}}']
    messages = [{"type": "http.request", "body": part, "more_body": part is parts[0]} for part in parts]
    messages.append({"type": "http.disconnect"})

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "headers": [(b"content-length", b"51"), (b"host", b"h")]}
    asyncio.run(ForcedLengths(server)(scope, receive, send))
    assert json.loads(seen["body"]) == {"max_tokens": 3, "vllm_xargs": None}
    assert not seen["more"]
    assert seen["headers"] == {b"host": b"h", b"content-length": str(len(seen["body"])).encode()}
    assert seen["next"]["type"] == "http.disconnect"
