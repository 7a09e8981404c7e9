from __future__ import annotations

from typing import Any

from lengthwise.predictors.contract import render_chat


def test_a_single_user_turn_is_its_own_text() -> None:
    assert render_chat([{"role": "user", "content": "Hello"}]) == "Hello"


def test_roles_are_marked_and_tools_named() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": "image_url"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look"}}]},
        {"role": "user", "content": "Well?"},
    ]
    assert render_chat(messages, [{"type": "function", "function": {"name": "look"}}]) == (
        "<tools> look\n<system> Be brief.\n<user> What is this?\n[image_url]\n<assistant> [call look]\n<user> Well?"
    )
