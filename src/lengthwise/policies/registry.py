"""Policies by name, as the command line, configuration and engine flags give them.

sjf    srpt:c=0.5    tie:beta=0.1,tau=60    fair(tie)    bounded(srpt:c=0.5):wait=120
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Final

from lengthwise.errors import InputError
from lengthwise.policies.base import Ordering
from lengthwise.policies.boost import Boost
from lengthwise.policies.bounded import Bounded
from lengthwise.policies.classes import Classes
from lengthwise.policies.contract import Policy
from lengthwise.policies.fair import Fair
from lengthwise.policies.fcfs import Fcfs
from lengthwise.policies.gittins import Gittins
from lengthwise.policies.hrrn import Hrrn
from lengthwise.policies.lengthwise import Lengthwise
from lengthwise.policies.ltr import Ltr
from lengthwise.policies.preble import Preble
from lengthwise.policies.sept import Sept
from lengthwise.policies.sjf import Sjf
from lengthwise.policies.srpt import Srpt
from lengthwise.policies.tie import Tie
from lengthwise.policies.wrapper import Wrapper

POLICIES: Final[Mapping[str, type[Ordering]]] = {
    kind.called: kind for kind in (Fcfs, Sjf, Ltr, Sept, Tie, Srpt, Gittins, Hrrn, Boost, Preble, Lengthwise)
}
WRAPPERS: Final[Mapping[str, type[Wrapper]]] = {kind.called: kind for kind in (Classes, Fair, Bounded)}

_SPEC: Final = re.compile(r"(?P<name>[^():,=\s]*)(?:\((?P<inner>.*)\))?(?::(?P<parameters>[^()]*))?")
_NEXT_PARAMETER: Final = re.compile(r"\s*\w+\s*=")


def make_policy(name: str) -> Policy:
    """Return the policy that `name` spells: a name, its parameters, wrappers around it."""
    text = name.strip()
    parts = _SPEC.fullmatch(text)
    if parts is None:
        raise InputError(f"'{name}' does not spell a policy", hint="give NAME, NAME:PARAMETER=NUMBER or WRAPPER(NAME)")
    known, inner = parts["name"], parts["inner"]
    if inner is None and known in POLICIES:
        return POLICIES[known](**_parameters(POLICIES[known], parts["parameters"]))
    if inner is not None and known in WRAPPERS:
        return WRAPPERS[known](make_policy(inner), **_parameters(WRAPPERS[known], parts["parameters"]))
    raise _unknown(known, wraps=inner is not None)


def split_policies(text: str) -> list[str]:
    """Split a list of policies at its commas, but not at those inside parentheses or between parameters."""
    names, depth = [""], 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0 and not _NEXT_PARAMETER.match(text, place + 1):
            names.append("")
        else:
            names[-1] += sign
    return [name.strip() for name in names]


def _parameters(kind: type[Ordering | Wrapper], text: str | None) -> dict[str, Any]:
    known = [field.name for field in fields(kind) if "least" in field.metadata]
    given: dict[str, Any] = {}
    for part in [] if text is None else text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in known or not equals:
            takes = f"it takes {', '.join(known)}, as in {kind.called}:{known[0]}=NUMBER" if known else "it takes none"
            raise InputError(f"policy {kind.called} has no parameter '{part.strip()}'", hint=takes)
        if name in given:
            raise InputError(f"parameter '{name}' of policy {kind.called} is given twice", hint="give it once")
        given[name] = _number(value)
    return given


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _unknown(name: str, *, wraps: bool) -> InputError:
    if name in WRAPPERS:
        return InputError(f"'{name}' is not a policy by itself", hint=f"it goes around one, as in {name}(sjf)")
    if name in POLICIES:
        return InputError(f"policy {name} goes around no other", hint=f"those that do are {', '.join(WRAPPERS)}")
    kinds = list(WRAPPERS if wraps else POLICIES)
    near = get_close_matches(name, kinds, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return InputError(f"there is no policy '{name}'", hint=f"{meant}known are {', '.join(kinds)}")
