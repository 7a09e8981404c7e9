"""Calls of a deployment's handle as jobs, and the number of its replicas in this process.

Apart from `request_router`: Ray Serve copies that module by value, and its globals with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from lengthwise.client.kind import xargs_prediction
from lengthwise.gateway.bodies import BODIES
from lengthwise.gateway.errors import ApiError
from lengthwise.lengths import DEFAULT_CAP
from lengthwise.policies import Job

AVOID: Final = "avoid"
"""Keyword argument of a call: ids of replicas that failed it; they are chosen only if there is no other."""

replica_counts: Final[dict[tuple[str, str], int]] = {}
"""Replicas that run, by application and deployment, as the request routers of this process know them."""

_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def set_replicas(deployment: tuple[str, str], count: int) -> None:
    """Set the replicas of a deployment.

    A function, because Ray Serve copies the request router's class with its globals, but not this module.
    """
    replica_counts[deployment] = count


def read_job(job_id: str, args: Sequence[Any]) -> Job | None:
    """Return the job of a call's positional arguments; None if they hold no OpenAI body."""
    path, content = _body(args)
    if path not in BODIES or not isinstance(content, Mapping):
        return None
    try:
        body = BODIES[path].model_validate(content)
        job = body.job(job_id, time.monotonic(), dict(args[3]) if len(args) > 3 else {})
    except (ValidationError, ApiError):  # the engine refuses it
        return None
    xargs = content.get("vllm_xargs")
    if isinstance(xargs, Mapping) and "length_mu" in xargs:
        job.update_prediction(xargs_prediction(xargs, body.limit or DEFAULT_CAP))
    return job


def _body(args: Sequence[Any]) -> tuple[str, Any]:
    """Return the path that a call is for, and its body."""
    if len(args) > 2 and isinstance(args[2], bytes):
        path = str(args[1]).partition("?")[0]
        try:
            return path, json.loads(args[2]) if path in BODIES else None
        except ValueError:
            return path, None
    dump = getattr(args[0], "model_dump", None) if args else None
    if dump is None:
        return "", None
    content = dump(exclude_unset=True)
    return (_CHAT if "messages" in content else _COMPLETIONS), content
