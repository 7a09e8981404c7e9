"""Which routers are compiled, and the marker of one whose machine code is cached; nothing here loads Numba."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from lengthwise.cache import compilation_marker
from lengthwise.routers.base import ROUTERS
from lengthwise.specs import parse_spec


def compiled_router(spec: str) -> str | None:
    """Return the name of a router without its parameters; None for one that is not compiled."""
    base = parse_spec(spec, "router").base
    return base if base in ROUTERS and ROUTERS[base][0] != "base" else None


def router_marker(name: str) -> Path:
    """Return the file that exists once this router was compiled."""
    return compilation_marker(f"router-{name}", _sources())


def announce_router(spec: str) -> None:
    """Log that a router is about to be compiled, unless a process has done so before."""
    if (name := compiled_router(spec)) is not None:
        from lengthwise.compiled import announce  # loads Numba

        announce(f"the router {name}", f"router-{name}", _sources())


@cache
def _sources() -> tuple[Path, ...]:
    return tuple(sorted(Path(__file__).parent.glob("*.py")))
