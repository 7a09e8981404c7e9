"""Command-line options taken from a pydantic model: one source for names, types, defaults, help and validation."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_origin

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from lengthwise.errors import InputError

Model = TypeVar("Model", bound=BaseModel)
_PLAIN = (bool, int, float, str)
_GIVEN = ("COMMANDLINE", "ENVIRONMENT")
_LONG = re.compile(r"--[\w-]+")
_QUOTED = re.compile(r"`(\w+)`")
_RETIRED = "retired_"
_FLAGS = {"engines": "engine", "max_num_batched_tokens": "max_batched_tokens"}


def options_from(
    *models: type[BaseModel],
    without: Collection[str] = (),
    only: Collection[str] | None = None,
    defaults: dict[str, Any] | None = None,
    environment: str | None = None,
    panels: Mapping[str, Collection[str]] | None = None,
    retired: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command, which takes `**fields`, one option for each field of the models, `only` or `without` some.

    A field `timeout_s` is the option `--timeout-s`; its description is the help text. A list is one text with commas,
    or repeatable if the field is marked so. `defaults` replaces defaults. With `environment`, a prefix, an option that
    is not given is read from the variable of its name. `panels` has the fields of each panel of the help. `retired` has
    the flags that are no longer there, and the error that each gives; `--timeout` is one of them where the field is
    `timeout_s`. The command validates what it gets by `validated`.
    """
    panel_of = {name: title for title, names in (panels or {}).items() for name in names}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        given = [
            parameter
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        added = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=(defaults or {}).get(name, _option_default(field.default)),
                annotation=Annotated[
                    list[str] | None if _repeats(field) else _option_type(field.annotation),
                    typer.Option(
                        _declared(name, field.annotation),
                        help=field.description,
                        envvar=_variable(_flag(name), environment),
                        show_envvar=False,
                        rich_help_panel=panel_of.get(name),
                    ),
                ],
            )
            for model in models
            for name, field in model.model_fields.items()
            if name not in without and (only is None or name in only)
        ]
        timed = [flag for each in added if (flag := _flag(each.name)).endswith("-s")]
        old = {flag.removesuffix("-s"): f"is now {flag}" for flag in timed} | dict(retired or {})
        added += [_retired(flag, text, environment) for flag, text in old.items()]
        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in given] + added

        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            # Typer passes an option that is not exposed as None.
            command(**{name: value for name, value in arguments.items() if not name.startswith(_RETIRED)})

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def retired_options(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the options of fields that are gone, with their errors, in which `field` becomes --field."""
    return {_flag(old): _QUOTED.sub(lambda field: _flag(field[1]), text) for old, text in fields.items()}


def _retired(flag: str, text: str, environment: str | None) -> inspect.Parameter:
    """Return a hidden option, which raises the InputError that says what to use instead."""
    variable = _variable(flag, environment)

    def refuse(context: typer.Context, param: typer.CallbackParam, value: str | None) -> None:
        if value is None:
            return
        source = context.get_parameter_source(str(param.name))
        if source is None or source.name != "ENVIRONMENT":
            raise InputError(text, source=flag)
        raise InputError(_LONG.sub(lambda new: _variable(new[0], environment) or "", text), source=variable)

    option = typer.Option(flag, hidden=True, expose_value=False, callback=refuse, envvar=variable)
    name = f"{_RETIRED}{flag.strip('-').replace('-', '_')}"
    annotation = Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _variable(flag: str, environment: str | None) -> str | None:
    return None if environment is None else environment + flag[2:].upper().replace("-", "_")


def validated(model: type[Model], arguments: Mapping[str, str] | None = None, /, **fields: Any) -> Model:
    """Return the model; an InputError that names the option where a value is invalid.

    `arguments` has the names of arguments by their fields; the other fields are options.
    """
    try:
        return model(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        field, cause = str(first["loc"][0]) if first["loc"] else None, first.get("ctx", {}).get("error")
        source = None if field is None else (arguments or {}).get(field, _flag(field))
        if isinstance(cause, InputError):
            if cause.source is None and cause.field is None:
                cause.source = source
            raise cause from None
        raise InputError(f"'{first['input']}' is not valid", source=source, hint=first["msg"]) from None


def given_fields(context: typer.Context, model: type[BaseModel]) -> dict[str, Any]:
    """Return the fields of `model` that come from the command line or the environment, not from defaults."""
    sources = {name: context.get_parameter_source(name) for name in context.params if name in model.model_fields}
    chosen = [name for name, source in sources.items() if source is not None and source.name in _GIVEN]
    return {name: context.params[name] for name in chosen}


def _repeats(field: FieldInfo) -> bool:
    return isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get("repeatable"))


def _option_default(default: Any) -> Any:
    return (",".join(default) or None) if isinstance(default, list) else default


def _option_type(annotation: Any) -> Any:
    """Return the type that the command line parses: a field's, without the model's own constraints.

    A list and a mapping are texts, which the model splits.
    """
    if get_origin(annotation) is Literal:
        return annotation
    parts = (annotation, *getattr(annotation, "__args__", ()))
    if any(get_origin(part) in (list, dict) for part in parts):
        return str | None
    optional = annotation not in _PLAIN and type(None) in parts
    plain = next((kind for kind in _PLAIN if kind in parts), str)
    return plain | None if optional else plain


def _flag(field: str) -> str:
    return "--" + _FLAGS.get(field, field).replace("_", "-")


def _declared(field: str, annotation: Any) -> str:
    flag = _flag(field)
    return f"{flag}/--no-{flag[2:]}" if _option_type(annotation) in (bool, bool | None) else flag
