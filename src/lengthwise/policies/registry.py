"""The built-in policies by name, and `make_policy`, which makes one from a spec.

sjf    srpt:c=0.5    tie:beta=0.1,tau=60    fair(tie)    bounded(srpt:c=0.5):wait=120
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from lengthwise.errors import InputError
from lengthwise.policies.arrival_order import Boost, Fcfs, Hrrn, Lpm, Preble
from lengthwise.policies.base import BasePolicy, construct
from lengthwise.policies.lengthwise import Lengthwise
from lengthwise.policies.ontime import OnTime
from lengthwise.policies.preemptive import Gittins, Srpt
from lengthwise.policies.protocol import Policy
from lengthwise.policies.sessions import Sessions
from lengthwise.policies.shortest import Lept, Ltr, Sept, Sjf, Tie
from lengthwise.policies.slo import Slo
from lengthwise.policies.wrappers import Background, Bounded, Classes, Fair, Wrapper
from lengthwise.specs import Spec, find, parse_spec

POLICIES: Final[Mapping[str, type[BasePolicy]]] = {
    kind.kind: kind
    for kind in (Fcfs, Sjf, Ltr, Sept, Lept, Tie, Srpt, Gittins, Hrrn, Boost, Lpm, Preble, Lengthwise, Slo, OnTime)
}
WRAPPERS: Final[Mapping[str, type[Wrapper]]] = {
    kind.kind: kind for kind in (Classes, Fair, Bounded, Background, Sessions)
}

LIMIT_PARAMETERS: Final = {"ttft": "ttft_limit_s", "per_token": "per_token_limit_s", "seconds": "e2e_limit_s"}
"""Parameters of policies that are latency limits, and the names of these limits in `Job.limits`."""

_REQUIRED: Final = sorted(
    name for name in {*vars(Policy), *getattr(Policy, "__annotations__", {})} if not name.startswith("_")
)


def make_policy(spec: str | Policy, *, imports: bool = True) -> Policy:
    """Return the policy that a spec names (see `lengthwise.specs`); a policy is returned as it is.

    With `imports` False a dotted path is refused: for specs that arrive over a network.
    """
    if isinstance(spec, str):
        return _make(parse_spec(spec, "policy"), imports=imports)
    _check_protocol(spec, type(spec).__name__)
    return spec


def limits_kept(policy: Policy) -> dict[str, float]:
    """Return the limits that a policy keeps for jobs without their own, as `Job.limits`; a wrapper has the inner's."""
    inner = getattr(policy, "inner", None)
    if inner is not None:
        return limits_kept(inner)
    given = {name: getattr(policy, parameter, None) for parameter, name in LIMIT_PARAMETERS.items()}
    return {name: float(limit) for name, limit in given.items() if isinstance(limit, int | float)}


def _make(spec: Spec, *, imports: bool) -> Policy:
    known = POLICIES if spec.inner is None else WRAPPERS
    if spec.attribute is None and spec.name in WRAPPERS and spec.inner is None:
        raise InputError(f"'{spec.name}' is not a policy by itself", hint=f"it wraps one, as in {spec.name}(sjf)")
    if spec.attribute is None and spec.name in POLICIES and spec.inner is not None:
        raise InputError(f"policy {spec.name} wraps no other", hint=f"those that do are {', '.join(WRAPPERS)}")
    kind = find(spec, "policy", known, imports=imports)
    inner = [] if spec.inner is None else [_make(spec.inner, imports=imports)]
    made = construct(kind, spec, "policy", *inner)
    _check_protocol(made, spec.base)
    if parse_spec(made.name).base != spec.base and made.name != spec.base:
        raise InputError(
            f"the name of policy {spec.base} is '{made.name}', which does not find it again",
            hint=f"let its name begin with {spec.base}; a subclass of BasePolicy sets no `kind` for that",
        )
    return cast("Policy", made)


def _check_protocol(policy: object, name: str) -> None:
    missing = [member for member in _REQUIRED if not hasattr(policy, member)]
    if missing:
        raise InputError(
            f"{name} is not a policy: it has no {', '.join(missing)}",
            hint="subclass lengthwise.policies.BasePolicy and write `score`",
        )
