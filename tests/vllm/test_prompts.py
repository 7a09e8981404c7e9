"""Token ids are decoded to the text that the gateway renders, for every chat template."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.predictors.contract import render_chat
from lengthwise.vllm.prompts import PromptReader

Messages = list[dict[str, str]]
TODAY = "26 Jul 2024"


def chatml(messages: Messages, tools: Any, default: str = "You are Qwen, a helpful assistant.") -> str:
    """Qwen's template: a default system turn if none is given, tools inside it."""
    system = messages[0]["content"] if messages[0]["role"] == "system" else default
    if tools:
        listed = "".join("\n" + json.dumps(tool) for tool in tools)
        system += f'\n\n# Tools\n\n<tools>{listed}\n</tools>\n\nReturn {{"name": <name>}}.'
    text = f"<|im_start|>system\n{system}<|im_end|>\n"
    for message in messages:
        if message["role"] != "system":
            text += f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"
    return text + "<|im_start|>assistant\n"


def llama(messages: Messages, tools: Any) -> str:
    """Llama 3.1's template: always a system turn with the date; tools before the first question."""
    by_role = {message["role"]: message["content"] for message in messages}
    text = f"<|begin_of_text|><|h|>system<|/h|>\n\nToday Date: {TODAY}\n\n{by_role.get('system', '')}<|eot_id|>"
    given = "".join(json.dumps(tool, indent=4) + "\n\n" for tool in tools or [])
    for message in messages:
        if message["role"] != "system":
            text += f"<|h|>{message['role']}<|/h|>\n\n"
            text += f"Given these functions:\n\n{given}" if given and message["role"] == "user" else ""
            text += message["content"] + "<|eot_id|>"
            given = given if message["role"] == "system" else ""
    return text + "<|h|>assistant<|/h|>\n\n"


def mistral(messages: Messages, tools: Any) -> str:
    """The template of an early Mistral: no system turn, no tools, short markup."""
    assert not tools
    if messages[0]["role"] == "system":
        raise ValueError("no system turn")
    marks = {"user": "[INST] {} [/INST]", "assistant": " {}</s>"}
    return "<s>" + "".join(marks[message["role"]].format(message["content"]) for message in messages)


def gemma(messages: Messages, tools: Any) -> str:
    """Gemma's template: the system text precedes the user's in one turn."""
    assert not tools
    system = messages[0]["content"] + "\n\n" if messages[0]["role"] == "system" else ""
    text = "<bos>"
    for message in messages:
        if message["role"] != "system":
            role = {"user": "user", "assistant": "model"}[message["role"]]
            text += f"<start_of_turn>{role}\n{system}{message['content']}<end_of_turn>\n"
            system = ""
    return text + "<start_of_turn>model\n"


TEMPLATES: dict[str, Callable[..., str]] = {"chatml": chatml, "llama": llama, "mistral": mistral, "gemma": gemma}
WITH_SYSTEM = ["chatml", "llama"]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": "look", "parameters": {"properties": {"name": {"type": "string"}}}},
    },
    {"type": "function", "function": {"name": "see", "description": "x", "parameters": {}}},
]


@dataclass
class Bytes:
    """A tokenizer of UTF-8 bytes, so that a character can span tokens."""

    template: Callable[..., str] | None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return ([0] if add_special_tokens else []) + [byte + 1 for byte in text.encode()]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        text = bytes(each - 1 for each in ids if each).decode(errors="replace")
        return text if skip_special_tokens or 0 not in ids else "<s>" + text

    def apply_chat_template(self, messages: Messages, tools: Any = None, **options: Any) -> str:
        assert options == {"tokenize": False, "add_generation_prompt": True}
        if self.template is None:
            raise ValueError("there is no chat template")
        return self.template(messages, tools)


def served(name: str, messages: Messages, tools: Any = None) -> tuple[PromptReader, list[int]]:
    """Return a reader for the template and the token ids that an engine receives."""
    tokenizer = Bytes(TEMPLATES[name])
    return PromptReader.of(tokenizer), tokenizer.encode(TEMPLATES[name](messages, tools), add_special_tokens=False)


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


SYSTEM = {"role": "system", "content": "Be brief.\nAlways."}
QUESTION = [user("What is a prime?\n")]
TALK = [user("Hello"), assistant("Hi, what can I do?"), user("Nothing. Süß 😀"), assistant("Good."), user("Bye")]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("messages", [QUESTION, TALK, TALK[:3], [user("")]])
def test_a_chat_is_read_as_the_gateway_renders_it(name: str, messages: Messages) -> None:
    reader, ids = served(name, messages)
    assert reader.read(ids) == render_chat(messages)


@pytest.mark.parametrize("name", WITH_SYSTEM)
@pytest.mark.parametrize("messages", [QUESTION, TALK])
@pytest.mark.parametrize("system", [[], [SYSTEM]])
@pytest.mark.parametrize("tools", [None, TOOLS[:1], TOOLS])
def test_system_turns_and_tools_are_distinguished_from_the_templates_own_text(
    name: str, messages: Messages, system: Messages, tools: Any
) -> None:
    reader, ids = served(name, system + messages, tools)
    assert reader.read(ids) == render_chat(system + messages, tools or ())


def test_system_and_user_text_in_one_turn_is_read_as_one_turn() -> None:
    reader, ids = served("gemma", [SYSTEM, *QUESTION])
    assert reader.read(ids) == "Be brief.\nAlways.\n\nWhat is a prime?\n"


def test_the_date_in_a_template_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, _ = served("llama", QUESTION)
    monkeypatch.setattr("tests.vllm.test_prompts.TODAY", "1 January 2026")
    _, ids = served("llama", QUESTION)
    assert reader.read(ids) == QUESTION[0]["content"]


def test_a_prefilled_answer_is_a_turn_but_its_markup_is_not() -> None:
    reader, ids = served("chatml", QUESTION)
    tokenizer = Bytes(None)
    thinking = tokenizer.encode("<think>\n\n</think>\n\n", add_special_tokens=False)
    begun = tokenizer.encode("A prime is", add_special_tokens=False)
    assert reader.read(ids + thinking) == render_chat(QUESTION)
    assert reader.read(ids + begun) == render_chat([*QUESTION, assistant("A prime is")])


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("text", ["", "Once upon a time", "user\nassistant\n", "ß" * 3000])
def test_a_bare_prompt_is_one_user_turn_without_special_tokens(name: str, text: str) -> None:
    reader, _ = served(name, QUESTION)
    assert reader.read(reader.tokenizer.encode(text)) == text


def test_without_a_template_every_prompt_is_bare() -> None:
    reader = PromptReader.of(Bytes(None))
    assert reader.template is None
    assert reader.read(reader.tokenizer.encode("a")) == "a"


def test_a_template_without_turn_markers_is_ignored() -> None:
    def plain(messages: Messages, tools: Any) -> str:
        return "".join(message["content"] for message in messages)

    assert PromptReader.of(Bytes(plain)).template is None


@pytest.mark.parametrize("shift", range(4))
def test_long_prompts_are_decoded_in_pieces_without_breaking_a_character(shift: int) -> None:
    messages = [user("x" * shift + "漢字 and 😀 " * 2000), assistant("ok"), user("more")]
    reader, ids = served("chatml", messages)
    assert len(ids) > 20_000
    assert reader.read(ids) == render_chat(messages)


@given(st.lists(st.text(), min_size=1, max_size=5), st.sampled_from(sorted(TEMPLATES)))
def test_any_chat_is_read(texts: list[str], name: str) -> None:
    messages = [user(text) if n % 2 == 0 else assistant(text) for n, text in enumerate(texts)]
    reader, ids = served(name, messages)
    assert isinstance(reader.read(ids), str)


@given(st.lists(st.integers(0, 255), max_size=200), st.sampled_from(sorted(TEMPLATES)))
def test_any_token_ids_are_read(ids: list[int], name: str) -> None:
    reader, _ = served(name, QUESTION)
    assert isinstance(reader.read(ids), str)


@pytest.mark.parametrize(("ending", "switch"), [("", None), ("<think>\n\n</think>\n\n", "off"), ("<think>\n", "on")])
def test_the_switch_for_reasoning_is_read_from_the_end_of_the_prompt(ending: str, switch: str | None) -> None:
    reader, ids = served("chatml", QUESTION)
    ids += reader.tokenizer.encode(ending, add_special_tokens=False)
    assert reader.read_with_switch(ids) == (render_chat(QUESTION), switch)
