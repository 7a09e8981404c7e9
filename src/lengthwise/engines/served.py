"""Which model an endpoint is asked for, told before anything is sent to it."""

from __future__ import annotations

from lengthwise.engines.client import EngineClient, EngineError
from lengthwise.errors import InputError


async def served_model(client: EngineClient, wanted: str | None) -> str:
    """Return `wanted`, or the first model that the endpoint serves; an InputError where nobody answers."""
    try:
        served = [str(model["id"]) for model in await client.models()]
    except EngineError as error:
        raise InputError(
            str(error),
            source="--url",
            hint="start one with `lengthwise engine` or `lengthwise serve`, or mend the URL",
        ) from error
    if wanted is None and not served:
        raise InputError(f"{client.url} serves no model", source="--url", hint="name one with --model")
    return served[0] if wanted is None else wanted
