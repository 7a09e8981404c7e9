"""Routers by name, as the command line and configuration give them.

least_outstanding    power_of_two:seed=1    dynamo:prefill=2,active=1
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from lengthwise.errors import InputError
from lengthwise.routers.contract import Router

if TYPE_CHECKING:
    from lengthwise.routers.base import BaseRouter

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
    "lengthwise": ("lengthwise", "Lengthwise"),
}
"""Names, and where each is: module and class. Loaded when made, because some need the compiler."""


def make_router(name: str) -> Router:
    """Return a fresh router of the kind that `name` spells: a name and its parameters."""
    called, colon, text = (part.strip() for part in name.partition(":"))
    if called not in ROUTERS:
        near = get_close_matches(called, ROUTERS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"there is no router '{called}'", hint=f"{meant}known are {', '.join(ROUTERS)}")
    module, kind = ROUTERS[called]
    made = cast("type[BaseRouter]", getattr(import_module(f"lengthwise.routers.{module}"), kind))
    return made(**_parameters(made, text) if colon else {})


def _parameters(kind: type[BaseRouter], text: str) -> dict[str, float]:
    known = list(kind.parameters)
    given: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in known or not equals:
            takes = (
                f"it takes {', '.join(known)}, as in {kind.base_name}:{known[0]}=NUMBER" if known else "it takes none"
            )
            raise InputError(f"router {kind.base_name} has no parameter '{part.strip()}'", hint=takes)
        if name in given:
            raise InputError(f"parameter '{name}' of router {kind.base_name} is given twice", hint="give it once")
        try:
            given[name] = float(value)
        except ValueError as error:
            raise InputError(f"{name} of router {kind.base_name} is '{value}'", hint="give a number") from error
    return given
