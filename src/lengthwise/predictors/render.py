"""One rendering of a request as text, the same in training, gateway and engine.

System, history and last user turn in order, roles marked, tools named. A bare prompt is one user turn and is left
as it is: that is what predictors are trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def render_chat(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """Render OpenAI chat messages; whatever has no text is named by its kind."""
    names = [str(tool.get("function", {}).get("name", "?")) for tool in tools]
    turns = [(str(message.get("role", "user")), _text(message)) for message in messages]
    if len(turns) == 1 and turns[0][0] == "user" and not names:
        return turns[0][1]
    lines = [f"<tools> {', '.join(names)}"] if names else []
    return "\n".join([*lines, *(f"<{role}> {text}" for role, text in turns)])


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if content is None:
        calls = message.get("tool_calls") or []
        return " ".join(f"[call {call.get('function', {}).get('name', '?')}]" for call in calls)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return str(content)
    return "\n".join(
        str(part.get("text", f"[{part.get('type', '?')}]")) if isinstance(part, dict) else str(part) for part in content
    )
