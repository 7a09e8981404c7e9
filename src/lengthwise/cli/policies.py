"""`lengthwise policies`: the built-in policies, one line each."""

from __future__ import annotations

from lengthwise.cli.output import AsJson, list_kinds
from lengthwise.defaults import DEFAULT_POLICY
from lengthwise.policies.registry import POLICIES, WRAPPERS


def policies(as_json: AsJson = False) -> None:
    """List the policies, and the wrappers around them, with one line each.

    Parameters are behind a colon (`tie:beta=0.3`), a wrapped policy is in brackets (`fair(sjf)`):
    docs/reference/policies.md has all.

    Example: `lengthwise policies`
    """
    list_kinds({**POLICIES, **WRAPPERS}, DEFAULT_POLICY, as_json=as_json)
