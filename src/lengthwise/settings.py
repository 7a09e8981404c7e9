"""Settings in pydantic models: read from YAML files, and the first one that is wrong as an InputError."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import yaml  # type: ignore[import-untyped]

from lengthwise.errors import InputError
from lengthwise.specs import unknown_name

if TYPE_CHECKING:  # an engine's file is read without pydantic until its values are checked
    from pydantic import ValidationError

Validated = TypeVar("Validated")

_MAX_OTHERS: Final = 9
_UNKNOWN: Final = ("extra_forbidden", "unexpected_keyword_argument")
_MAX_DEPTH: Final = 50
_MAX_VALUES: Final = 100_000  # at one depth
_NESTED: Final = "is nested too deeply, or refers to itself"
_SECRETS: Final = frozenset({"admin_token", "api_key", "shared_secret"})


def read_yaml(path: Path, *, hint: str) -> dict[str, Any]:
    """Return the fields of a YAML file; `hint` is for a file that holds none."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506  (a SafeLoader)
    except FileNotFoundError:
        raise InputError("no such file", source=path) from None
    except IsADirectoryError:
        raise InputError("is a folder", source=path, hint="name a file in it") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=path) from error
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8 text", source=path, hint="give a YAML file") from error
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), str(getattr(error, "problem", error))
        if not isinstance(error, yaml.constructor.ConstructorError):
            problem = f"is not YAML: {' '.join(problem.split())}"
        raise InputError(problem, source=path if mark is None else f"{path}, line {mark.line + 1}") from error
    except RecursionError:
        raise InputError(_NESTED, source=path) from None
    except ValueError as error:  # a day that no month has, a number of thousands of digits
        raise InputError(f"holds a value that cannot be read: {error}", source=path) from error
    _check_extent(content, path)
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise InputError("holds no fields", source=path, hint=hint)
    return content


def _check_extent(content: object, path: Path) -> None:
    """Refuse what is nested without end, or becomes large by references: `&a [*a]`."""
    level = [content]
    for _ in range(_MAX_DEPTH):
        level = list(itertools.islice((each for value in level for each in _members(value)), _MAX_VALUES + 1))
        if not level:
            return
        if len(level) > _MAX_VALUES:
            break
    raise InputError(_NESTED, source=path)


def _members(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple, set)) else ()


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses a key that is given twice, of which YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise yaml.constructor.ConstructorError(
                    problem=f"'{name}' is given twice in one section", problem_mark=node.value[number][0].start_mark
                )
        return dict(super().construct_mapping(node, deep))


def validated(kind: type[Validated], content: object, *, source: str | Path, section: str | None = None) -> Validated:
    """Return a model or dataclass made of `content`; an InputError names the first field that is wrong."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        raise invalid(error, kind, source=source, section=section) from None


def invalid(error: ValidationError, model: type, *, source: str | Path, section: str | None = None) -> InputError:
    """Return the problems that the validation of `model` found, in one line; `section` is where `source` has the model.

    The first is the error, the others are in its hint, one for each field.
    """
    found = {
        each["loc"][:1] or (number,): each for number, each in enumerate(reversed(error.errors(include_url=False)))
    }
    first, *others = (_problem(each, model, source, section) for each in reversed(found.values()))
    for other in others[:_MAX_OTHERS]:
        other.source = None
        first.hint = f"{first.hint}; also {other}" if first.hint else f"also {other}"
    problem, field, hint = map(_one_line, (first.problem, first.field, first.hint))
    return InputError(problem or "", source=first.source, field=field, hint=hint)


def _one_line(text: str | None) -> str | None:
    """Return a text that may show a value or a name of the file on one line."""
    return None if text is None else " ".join(text.splitlines())


def _problem(first: Any, model: type, source: str | Path, section: str | None) -> InputError:  # pydantic's ErrorDetails
    place, cause = first["loc"], first.get("ctx", {}).get("error")
    field = ".".join(str(step) for step in (place if section is None else (section, *place))) or None
    if isinstance(cause, InputError):
        if not place and cause.field is not None:  # of a whole section
            field = cause.field if field is None else f"{field}.{cause.field}"
        problem = f"{cause.source}: {cause.problem}" if cause.source else cause.problem
        return InputError(problem, source=source, field=field, hint=cause.hint)
    if first["type"] in _UNKNOWN:
        unknown = unknown_name(str(place[-1]), "field", _fields(model, place[:-1]))
        return InputError(unknown.problem, source=source, field=field, hint=unknown.hint)
    if first["type"] in ("missing", "missing_argument"):
        return InputError("is missing", source=source, field=field)
    # A whole section may hold secrets.
    plain = not _SECRETS.intersection(place[-1:]) and isinstance(first["input"], str | int | float | None)
    shown = f"'{str(first['input'])[:80]}'" if plain else "this value"
    return InputError(f"{shown} is not valid", source=source, field=field, hint=first["msg"])


def _fields(model: type, place: Sequence[int | str]) -> list[str]:
    """Return the names of the fields of the section at a place."""
    for step in place:
        fields = getattr(model, "model_fields", {})
        model = _model_in(fields[step].annotation) or model if step in fields else model
    return list(getattr(model, "model_fields", None) or model.__annotations__)


def _model_in(annotation: Any) -> type | None:  # any annotation
    if hasattr(annotation, "model_fields"):
        return annotation  # type: ignore[no-any-return]
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)
