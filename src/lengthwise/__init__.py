"""LLM serving that knows how long an answer will be."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("lengthwise")
