"""The error for invalid user input, and the one for an extra that is not installed."""

from __future__ import annotations

from pathlib import Path

from lengthwise.version import install_line

# The optional packages, by the extra that installs them.
EXTRAS = {
    "sim": ("pyarrow", "numba"),
    "serve": ("pyarrow", "numba", "httptools", "prometheus_client", "starlette", "uvicorn", "uvloop"),
    "reports": ("matplotlib",),
    "train": ("torch", "transformers", "onnx", "sklearn", "huggingface_hub"),
    "vllm": ("vllm",),
    "ray": ("ray",),
    "otel": ("opentelemetry",),
    "record": ("PIL",),
}


class InputError(ValueError):
    """Invalid user input; the message is one line that says what is wrong, where, and how to correct it.

    `source` is the file, option or name that holds the input, `row` counts from 1 in the order of the data
    (a header is not counted), `field` is the column or key.
    """

    def __init__(
        self,
        problem: str,
        *,
        source: str | Path | None = None,
        row: int | None = None,
        field: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.problem = problem
        self.source = None if source is None else str(source)
        self.row = row
        self.field = field
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        where = [
            self.source,
            None if self.row is None else f"row {self.row}",
            None if self.field is None else f"field '{self.field}'",
        ]
        place = ", ".join(part for part in where if part)
        line = f"{place}: {self.problem}" if place else self.problem
        return f"{line}; {self.hint}" if self.hint else line


def missing_extra(error: ModuleNotFoundError, prefer: str = "sim") -> InputError | None:
    """Return the InputError that names the extra to install, or None if the module belongs to no extra.

    Where several extras install the module, `prefer` is the one to name.
    """
    package = (error.name or "").partition(".")[0]
    extras = [extra for extra, packages in EXTRAS.items() if package in packages]
    if not extras:
        return None
    extra = prefer if prefer in extras else extras[0]
    return InputError(f"{package} is not installed", hint=f"run: {install_line(extra)}")


def require_kind(value: object, kinds: type | tuple[type, ...], field: str, hint: str) -> None:
    """Raise InputError if `value` is of none of these types, or a class; `hint` says what to give."""
    if isinstance(value, type) or not isinstance(value, kinds):
        given = f"is the class {value.__name__}" if isinstance(value, type) else f"is of type {type(value).__name__}"
        raise InputError(given, field=field, hint=f"give {hint}")
