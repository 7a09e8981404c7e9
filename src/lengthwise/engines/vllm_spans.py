"""What a step of vLLM's holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


def spans(output: SchedulerOutput) -> Iterator[tuple[int, int]]:
    """Of each request in a step, the tokens computed before it and those computed in it."""
    for new in output.scheduled_new_reqs:
        yield new.num_computed_tokens, output.num_scheduled_tokens[new.req_id]
    others = output.scheduled_cached_reqs
    for name, computed in zip(others.req_ids, others.num_computed_tokens, strict=True):
        yield computed, output.num_scheduled_tokens[name]
