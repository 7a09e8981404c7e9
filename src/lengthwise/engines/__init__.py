"""Real engines: the vLLM plug-in, the embedded engine, HTTP clients, load generation and step-time fits."""

from __future__ import annotations

from typing import Final

VLLM_RELEASES: Final = ("0.32.",)
"""Releases of vLLM that the plug-in is tested with: its scheduler interface is not public and changes between them."""
