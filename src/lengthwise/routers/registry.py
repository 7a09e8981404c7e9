"""Routers by spec: built-in names, entry points of the group `lengthwise.routers`, and dotted paths.

least_outstanding    power_of_two:seed=1    dynamo:prefill=2,active=1    my_package.module:MyRouter
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from inspect import Parameter as Argument
from inspect import signature
from typing import Any, Final

from lengthwise.errors import InputError
from lengthwise.routers.base import BaseRouter
from lengthwise.routers.contract import Router
from lengthwise.specs import find, parse_spec

ROUTERS: Final[Mapping[str, tuple[str, str]]] = {
    "random": ("base", "Random"),
    "round_robin": ("base", "RoundRobin"),
    "least_outstanding": ("load_aware", "LeastOutstanding"),
    "power_of_two": ("load_aware", "PowerOfTwo"),
    "least_load": ("load_aware", "LeastLoad"),
    "cache_aware": ("load_aware", "CacheAware"),
    "dynamo": ("load_aware", "Dynamo"),
    "e2": ("e2", "E2"),
    "e2_length": ("e2", "E2Length"),
    "lengthwise": ("lengthwise", "LengthwiseRouter"),
}
"""Built-in names, with module and class. Imported when used, because all but the first two need Numba."""


def make_router(spec: str, *, imports: bool = True) -> Router:
    """Return a fresh router. With `imports` False, dotted paths are refused."""
    parsed = parse_spec(spec, "router")
    if parsed.inner is not None:
        raise InputError(f"router {parsed.base} wraps no other router", hint="write NAME or NAME:PARAMETER=NUMBER")
    found = find(parsed, "router", ROUTERS, imports=imports)
    if isinstance(found, tuple):
        module, name = found
        found = getattr(import_module(f"lengthwise.routers.{module}"), name)
    arguments: dict[str, Any] = parsed.arguments(_parameters(found), "router")
    if isinstance(found, type) and issubclass(found, BaseRouter):
        for name, value in arguments.items():
            if isinstance(value, str):
                raise InputError(f"{name} of router {parsed.base} is '{value}'", hint="give a number")
    try:
        router = found(**arguments) if callable(found) else found
    except TypeError as error:
        raise InputError(f"router {parsed.base} cannot be made: {error}") from error
    if not isinstance(router, Router):
        missing = [name for name in _METHODS if not hasattr(router, name)]
        raise InputError(f"{parsed.base} is not a router", hint=f"it lacks {', '.join(missing)}")
    return router


_METHODS: Final = ("name", "uses_predictions", "engine_up", "engine_down", "choose", "observe")


def _parameters(made: Any) -> list[str]:  # noqa: ANN401
    """Return the names that a spec may set: those a BaseRouter declares, else the arguments of the class."""
    if isinstance(made, type) and issubclass(made, BaseRouter):
        return list(made.parameters)
    if not callable(made):
        return []
    kinds = (Argument.POSITIONAL_OR_KEYWORD, Argument.KEYWORD_ONLY)
    try:
        arguments = signature(made).parameters
    except ValueError:  # a class in C without a signature
        return []
    return [name for name, argument in arguments.items() if argument.kind in kinds]
