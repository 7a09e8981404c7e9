"""Policies by name, as the command line, configuration and engine flags give them."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from lengthwise.errors import InputError
from lengthwise.policies.fcfs import Fcfs
from lengthwise.policies.sjf import Sjf

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lengthwise.policies.contract import Policy

POLICIES: Final[Mapping[str, type[Policy]]] = {Fcfs.name: Fcfs, Sjf.name: Sjf}


def make_policy(name: str) -> Policy:
    """Return the policy of that name."""
    if name in POLICIES:
        return POLICIES[name]()
    near = get_close_matches(name, POLICIES, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise InputError(f"there is no policy '{name}'", hint=f"{meant}known are {', '.join(POLICIES)}")
