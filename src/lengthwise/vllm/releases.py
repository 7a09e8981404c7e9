"""Releases of vLLM."""

from __future__ import annotations

from typing import Final

VLLM_RELEASES: Final = ("0.32.",)
"""Releases of vLLM that the plug-in is tested with: its scheduler interface is not public and changes between them."""
