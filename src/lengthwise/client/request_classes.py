"""Classes of requests and their latency limits, as gateway and plug-in configure them and read them in requests.

A class is a name with a priority and latency limits. A request belongs to the class of its tenant, or names one itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from lengthwise.policies.job import LIMIT_FIELDS, MAX_LIMIT_S, MIN_LIMIT_S, declared_limit

CLASS_FIELD: Final = "request_class"
"""Names a request's class in `vllm_xargs` and configurations."""
PRIORITIES: Final = range(-(1 << 31), 1 << 31)
"""Priorities are 32 bits wide, as in vLLM."""

_LimitS = Annotated[float, Field(ge=MIN_LIMIT_S, le=MAX_LIMIT_S, allow_inf_nan=False)]
Priority = Annotated[int, Field(ge=PRIORITIES.start, lt=PRIORITIES.stop)]

_log = logging.getLogger(__name__)


class LatencyLimitsConfig(BaseModel):
    """Latency limits of requests that declare none, in seconds.

    A request's own come first, then those of its tenant, its class and its model.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    slo_s: _LimitS | None = None
    """Target for E2E latency, in seconds (`x-lengthwise-slo-s`)."""
    ttft_s: _LimitS | None = None
    """Limit to the first token, in seconds (`x-lengthwise-ttft-s`), which the policy `ontime` keeps."""
    per_token_s: _LimitS | None = None
    """Limit of E2E per output token, in seconds (`x-lengthwise-per-token-s`), which the policy `ontime` keeps."""

    @cached_property
    def limits(self) -> dict[str, float]:
        """The limits that are set, for `Job.use_limits`."""
        return {name: limit for name in LIMIT_FIELDS if (limit := getattr(self, name)) is not None}


class ClassConfig(LatencyLimitsConfig):
    """A class of requests."""

    priority: Priority = 0
    """Priority of its requests; lower runs first, before any other order."""


def xargs_limits(xargs: Mapping[str, Any]) -> dict[str, float]:
    """Return the latency limits in `vllm_xargs`, clamped; one that is not a number above 0 is logged and ignored."""
    found = {}
    for name in LIMIT_FIELDS:
        if xargs.get(name) is not None:
            try:
                found[name] = declared_limit(xargs[name])
            except ValueError as error:
                _log.warning("no usable %s in vllm_xargs: %s", name, error)
    return found


def xargs_priority(xargs: Mapping[str, Any], classes: Mapping[str, ClassConfig]) -> tuple[int | None, ClassConfig]:
    """Return the priority in `vllm_xargs`, None without one, and the class that is named there; else one of defaults.

    `priority`, from a gateway, comes before that of the class. What is not usable is logged and ignored.
    """
    name, given = xargs.get(CLASS_FIELD), xargs.get("priority")
    known = classes.get(name) if isinstance(name, str) else None
    if name is not None and known is None:
        _log.warning(
            "no class %r (vllm_xargs.%s); known are %s", str(name)[:40], CLASS_FIELD, ", ".join(classes) or "none"
        )
    priority = None if known is None else known.priority
    if given is not None:
        if isinstance(given, int) and not isinstance(given, bool):
            priority = clamped_priority(given)
        else:
            _log.warning("no usable priority in vllm_xargs: %r is not a whole number", str(given)[:40])
    return priority, known or ClassConfig()


def clamped_priority(priority: int) -> int:
    """Return a client's priority within 32 bits."""
    return min(max(priority, PRIORITIES.start), PRIORITIES.stop - 1)
