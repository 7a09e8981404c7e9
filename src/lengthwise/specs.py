"""Specs: how a policy, router, predictor or fleet is named in an option, a file or Python. One grammar for all of them.

    sjf                                  a built-in, or an entry point of an installed package
    srpt:c=0.5,times=2                   with parameters
    noisy:0.6                            with one value that has no name
    fair(tie:beta=0.3):quantum=8192      a wrapper around another spec
    my_package.module:MyPolicy           a dotted path to a class
    my_package.module:MyPolicy:c=0.5     the same, with parameters

`parse_spec` reads one spec, `split_specs` a comma-separated list of them, and `find` looks up the class that a spec
names: among the built-ins, then among the entry points (groups `lengthwise.policies`, `lengthwise.routers` and
`lengthwise.predictors`), then by dotted path. `Spec.arguments` returns the parameters once their names are checked.
The caller constructs the object.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, Literal

from lengthwise.errors import InputError

Kind = Literal["policy", "router", "predictor"]

_GROUPS: Final[Mapping[str, str]] = {
    "policy": "lengthwise.policies",
    "router": "lengthwise.routers",
    "predictor": "lengthwise.predictors",
}
_SPEC: Final = re.compile(
    r"\s*(?P<name>[^():,=\s]*)"
    r"(?:\s*:\s*(?P<attribute>[A-Za-z_]\w*)\s*(?=[:(]|$))?"
    r"\s*(?:\((?P<inner>.*)\))?"
    r"\s*(?::(?P<parameters>[^()]*))?"
)
_NEXT_PARAMETER: Final = re.compile(r"\s*\w+\s*=")


@dataclass(frozen=True, slots=True)
class Spec:
    """One parsed spec.

    name        "tie", or the module of a dotted path
    attribute   the class in that module; None where the spec is no dotted path
    parameters  by name, as floats where they are numbers, else as strings
    value       the one value without a name (noisy:0.6)
    inner       the spec inside the parentheses of a wrapper
    """

    name: str
    attribute: str | None = None
    parameters: Mapping[str, float | str] = field(default_factory=dict)
    value: float | str | None = None
    inner: Spec | None = None

    @property
    def base(self) -> str:
        """The name without parameters and inner spec: "tie", or "my_package.module:MyPolicy"."""
        return self.name if self.attribute is None else f"{self.name}:{self.attribute}"

    def arguments(self, known: Collection[str], kind: Kind) -> dict[str, float | str]:
        """Return the parameters; InputError if one has no name or is not among the `known` ones."""
        names = list(known)
        unknown = [f"{name}={_shown(value)}" for name, value in self.parameters.items() if name not in names]
        if self.value is not None:
            unknown.append(_shown(self.value))
        if unknown:
            takes = f"it takes {', '.join(names)}, as in {self.base}:{names[0]}=NUMBER" if names else "it takes none"
            raise InputError(f"{kind} {self.base} has no parameter '{unknown[0]}'", hint=takes)
        return dict(self.parameters)


def parse_spec(text: str, kind: str = "spec") -> Spec:
    """Parse one spec. `kind` names what it should be in error messages; whether the name exists is left to `find`."""
    if not isinstance(text, str):
        raise InputError(f"a {kind} is named by a string, not by {text!r}", hint="for example NAME:PARAMETER=NUMBER")
    parts = _SPEC.fullmatch(text.strip())
    if parts is None:
        raise InputError(
            f"'{text}' is not a {kind}", hint="write NAME, NAME:PARAMETER=NUMBER, WRAPPER(NAME) or MODULE:CLASS"
        )
    parameters: dict[str, float | str] = {}
    value: float | str | None = None
    for part in [] if parts["parameters"] is None else parts["parameters"].split(","):
        name, equals, given = (piece.strip() for piece in part.partition("="))
        if not equals and value is None:
            value = _number(name)
        elif not equals or name in parameters:
            raise InputError(f"parameter '{name}' of {kind} {parts['name']} is given twice", hint="give it once")
        else:
            parameters[name] = _number(given)
    inner = None if parts["inner"] is None else parse_spec(parts["inner"], kind)
    return Spec(parts["name"], parts["attribute"], parameters, value, inner)


def split_specs(text: str) -> list[str]:
    """Split a list at its commas, except inside parentheses and between the parameters of one spec."""
    names, depth = [""], 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0 and not _NEXT_PARAMETER.match(text, place + 1):
            names.append("")
        else:
            names[-1] += sign
    return [name.strip() for name in names]


def find(spec: Spec, kind: Kind, builtins: Mapping[str, Any], *, imports: bool = True) -> Any:
    """Return what the spec names: a value of `builtins`, or the loaded object of an entry point or dotted path.

    An unknown name is an InputError with the closest match. With `imports` False, dotted paths are refused: for
    names that arrive over a network.
    """
    if spec.attribute is None or spec.name in builtins:
        if spec.attribute is not None:
            raise InputError(f"{kind} {spec.name} has no parameter '{spec.attribute}'", hint="write PARAMETER=NUMBER")
        if spec.name in builtins:
            return builtins[spec.name]
        registered = {point.name: point for point in entry_points(group=_GROUPS[kind])}
        if spec.name in registered:
            return _load_entry_point(registered[spec.name], kind)
        raise unknown_name(spec.name, kind, [*dict.fromkeys((*builtins, *registered))])
    if not imports:
        raise InputError(
            f"{kind} '{spec.base}' may not be loaded by path here", hint=f"known are {', '.join(builtins)}"
        )
    return _import_path(spec, kind, builtins)


def unknown_name(name: str, kind: str, known: Collection[str]) -> InputError:
    """Return the error for a name that is not known: with the closest match and all that are."""
    near = get_close_matches(name, known, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return InputError(f"there is no {kind} '{name}'", hint=f"{meant}known are {', '.join(known)}")


def _load_entry_point(point: EntryPoint, kind: str) -> object:
    try:
        return point.load()
    except Exception as error:
        raise InputError(f"{kind} {point.name} ({point.value}) does not load: {error}") from error


def _import_path(spec: Spec, kind: Kind, builtins: Mapping[str, Any]) -> object:
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.append(str(Path.cwd()))  # a console script does not search the current folder; last, to shadow nothing
    try:
        module = import_module(spec.name)
    except ModuleNotFoundError as error:
        if error.name is None or not (spec.name + ".").startswith(error.name + "."):
            raise InputError(f"{kind} {spec.base} does not load: {error}") from error
        if get_close_matches(spec.name, builtins, n=1):
            raise unknown_name(spec.name, kind, list(builtins)) from error
        raise InputError(
            f"there is no module '{spec.name}' for {kind} '{spec.base}'",
            hint="install the package or run from the folder that holds it",
        ) from error
    except Exception as error:
        raise InputError(f"{kind} {spec.base} does not load: {error}") from error
    try:
        return getattr(module, str(spec.attribute))
    except AttributeError as error:
        raise InputError(f"module '{spec.name}' has no {spec.attribute}", hint="write MODULE:CLASS") from error


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else format(value, "g")
