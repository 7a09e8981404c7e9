"""`lengthwise routers`: the built-in routers, one line each."""

from __future__ import annotations

from importlib import import_module

from lengthwise.cli.output import AsJson, list_kinds
from lengthwise.defaults import DEFAULT_ROUTER
from lengthwise.routers import ROUTERS


def routers(as_json: AsJson = False) -> None:
    """List the routers with one line each; docs/reference/routing.md has their formulas and parameters.

    Example: `lengthwise routers`
    """
    kinds = {
        name: getattr(import_module(f"lengthwise.routers.{module}"), kind) for name, (module, kind) in ROUTERS.items()
    }
    list_kinds(kinds, DEFAULT_ROUTER, as_json=as_json)
