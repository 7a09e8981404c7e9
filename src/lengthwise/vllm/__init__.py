"""vLLM with length-aware scheduling: the plug-in, its queue and probe, its step log, and the embedded engine.

`lengthwise.vllm.LengthwiseScheduler` is what vLLM's `--scheduler-cls` takes.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:  # vLLM is an extra, and takes seconds to import
    if name == "LengthwiseScheduler":
        from lengthwise.vllm.scheduler import LengthwiseScheduler

        return LengthwiseScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
