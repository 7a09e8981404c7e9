"""MkDocs hook: the pages of the site that are made from the code when it is built.

`reference/cli.md` from the command line, `reference/configuration.md` from the pydantic models, `reference/python.md`
from the public names of the package (their docstrings by mkdocstrings), and `project/` from the files at the root of
the repository. They replace the placeholders that a reader of the repository finds. Pages of docs/ that the navigation
of mkdocs.yml does not name are added to the section of their folder; named pages that do not exist are left out.

`python -m scripts.docs_pages` writes docs/reference/metrics.md, which is kept, from the metrics of the gateway.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PROJECT = {"changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md", "security": "SECURITY.md"}
METRICS = ROOT / "docs" / "reference" / "metrics.md"
SECTIONS = {"start": "Start", "guides": "Guides", "reference": "Reference", "studies": "Studies"}

CLI_INTRODUCTION = """\
Generated from the commands; `lengthwise COMMAND --help` prints the same. A command that gets a wrong value prints one
line that says what would be right, and ends with exit code 2.

**Shell completion.** `lengthwise --install-completion` adds completion of commands and options to bash, zsh, fish or
PowerShell. `lengthwise --show-completion` prints the script instead."""

GATEWAY_INTRODUCTION = """\
`lengthwise serve --config gateway.yaml`. Every field at the top level that holds a single value is also an option of
[`serve`](cli.md#lengthwise-serve) (`queue_timeout_s` is `--queue-timeout-s`) and a variable
(`LENGTHWISE_SERVE_QUEUE_TIMEOUT_S`). An option takes precedence over a variable, a variable over the file. `${NAME}` in
the file is replaced by that variable."""

PYTHON_INTRODUCTION = """\
What `import lengthwise` offers. These names are the public interface; everything else may change between versions. A
name is imported at its first use, so an optional package is needed only by what uses it."""

METRICS_INTRODUCTION = """\
# Metrics

`GET /metrics` of the gateway, in Prometheus's text format. Times are in seconds. Labels are bounded: the configured
engines and tenants, and short fixed lists; an engine has its name in the configuration, never its address. This page
is made by `python -m scripts.docs_pages`.

`configs/grafana-dashboard.json` and `configs/prometheus-alerts.yaml` use these names; a test checks that they exist
([dashboard](../guides/dashboard.md#grafana-and-alerts)).

| name | type | labels | meaning |
|---|---|---|---|
"""


@cache
def generated_pages() -> dict[str, str]:
    """Return the Markdown of every generated page by its path in the site."""
    pages = {
        "reference/cli.md": cli_page(),
        "reference/configuration.md": configuration_page(),
        "reference/python.md": python_page(),
    }
    for name, source in PROJECT.items():
        if (ROOT / source).exists():
            pages[f"project/{name}.md"] = _links_of_root((ROOT / source).read_text(encoding="utf-8"))
    return pages


# --- hooks -----------------------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave out pages that do not exist, and add those that the navigation does not name."""
    docs = Path(config.docs_dir)
    present = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} | set(generated_pages())
    sections: list[Any] = [_existing(entry, present) for entry in config.nav or []]
    named = set(_paths(sections))
    for path in sorted(present - named):
        title = SECTIONS.get(path.partition("/")[0], "Guides")
        next(entry[title] for entry in sections if title in entry).append(path)
    config.nav = sections
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for path, content in generated_pages().items():
        if (placeholder := files.get_file_from_path(path)) is not None:
            files.remove(placeholder)
        files.append(File.generated(config, path, content=content))
    return files


_BOOSTS: Final = {"faq.md": 3.0, "guides/security.md": 3.0, "concepts.md": 2.0}
"""How much pages count in the search, beside 1; studies count _STUDY."""
_STUDY: Final = 0.3


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Weigh the page in the search, and point links to files at the root of the repository to their pages."""
    path = page.file.src_uri
    if (boost := _STUDY if path.startswith("studies/") else _BOOSTS.get(path)) is not None:
        page.meta["search"] = {"boost": boost}
    up = "../" * path.count("/")
    for name, source in PROJECT.items():
        markdown = markdown.replace(f"]({up}../{source})", f"]({up}project/{name}.md)")
    return markdown


def _existing(entry: Any, present: set[str]) -> Any:  # a tree of dicts, lists and paths
    if isinstance(entry, dict):
        return {title: _existing(value, present) for title, value in entry.items()}
    if isinstance(entry, list):
        return [value for value in entry if not isinstance(value, str) or value in present]
    return entry


def _paths(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    for child in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from _paths(child)


def _links_of_root(text: str) -> str:
    """Change the links of a file at the root to links of a page in project/; files outside docs/ lose theirs."""
    text = text.replace("](docs/", "](../")
    for name, source in PROJECT.items():
        text = text.replace(f"]({source})", f"]({name}.md)")
    return re.sub(r"\[([^]]+)\]\((?!https?:|\.\./|#|\w+\.md)[^)]*\)", r"\1", text)


# --- the command line ------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Return the page of the command line: every command with its arguments and options."""
    from lengthwise.cli import COMMANDS, PANELS, _load

    os.environ.setdefault("COLUMNS", "120")
    lines = [
        "# Command line",
        "",
        CLI_INTRODUCTION,
        "",
        "| | command | |",
        "|---|---|---|",
        *(
            f"| {panel if number == 0 else ''} | [`{name}`](#lengthwise-{name}) | {text} |"
            for panel, commands in PANELS.items()
            for number, (name, text) in enumerate(commands.items())
        ),
        "",
    ]
    for name in COMMANDS:
        lines += _command(f"lengthwise {name}", _load(name), level=2)
    return "\n".join(lines)


def _command(path: str, command: Any, level: int) -> Iterator[str]:  # Typer's class is private
    yield from (f"{'#' * level} {path}", "", _text(command.help or ""), "")
    shown = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
    usage = [path, *(_argument(each) for each in shown if each.param_type_name == "argument")]
    usage += ["[OPTIONS]"] * any(each.param_type_name == "option" for each in shown)
    usage += ["COMMAND"] * hasattr(command, "commands")
    yield from (f"    {' '.join(usage)}", "")
    panels: dict[str, list[Any]] = {}
    for each in shown:
        panels.setdefault(getattr(each, "rich_help_panel", None) or "", []).append(each)
    for title, members in panels.items():
        if title:
            yield from (f"**{title}**", "")
        yield from ("| option | default | |", "|---|---|---|")
        for each in members:
            names = ", ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts))
            if each.param_type_name == "argument":
                names = f"`{_cell(_argument(each))}`"
            yield f"| {names} | {_default(each)} | {_cell(getattr(each, 'help', None) or '')} |"
        yield ""
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from _command(f"{path} {name}", child, level + 1)


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required else f"[{name}]"


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or value == () or callable(value) or type(value).__name__ == "Sentinel":
        return ""
    return _shown(getattr(value, "value", value))


def _text(text: str) -> str:
    """Return a docstring as Markdown: without Click's marks, paths of docs/ as links from reference/."""
    return re.sub(r"\bdocs/([\w/-]+?)([\w-]+)\.md", r"[\2](../\1\2.md)", text.replace("\b", "")).strip()


def _cell(text: str) -> str:
    return " ".join(_text(text).split()).replace("|", "\\|").replace("<", "&lt;")


def _shown(value: object) -> str:
    """Return a default as a user writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    plain = ", ".join(str(each) for each in value) if isinstance(value, list | tuple) else str(value)
    return f"`{_cell(plain)}`"


# --- configuration ---------------------------------------------------------------------------------------------------


def configuration_page() -> str:
    """Return the page of the configuration files: every field of every model."""
    from lengthwise.gateway.config import EngineConfig, GatewayConfig, ModelConfig, TenantConfig
    from lengthwise.simulator.sweep import Limits, SweepConfig
    from lengthwise.training.encoder.config import TrainingConfig
    from lengthwise.vllm.embedded import EngineOptions

    parts: dict[str, tuple[str, list[type[BaseModel]]]] = {
        "The gateway": (
            GATEWAY_INTRODUCTION,
            [GatewayConfig, EngineConfig, ModelConfig, TenantConfig],
        ),
        "The embedded engine": ("The options of [`lengthwise engine`](cli.md#lengthwise-engine).", [EngineOptions]),
        "Sweeps": ("`lengthwise sweep sweep.yaml` ([sweeps](../guides/sweeps.md)).", [SweepConfig, Limits]),
        "Training": (
            "`lengthwise train config.yaml` ([training](../guides/training.md)).",
            [TrainingConfig, *_sections_of(TrainingConfig)],
        ),
    }
    lines = ["# Configuration", "", "Generated from the models that read the files. An unknown field is an error.", ""]
    for title, (introduction, models) in parts.items():
        lines += [f"## {title}", "", introduction, ""]
        for model in models:
            lines += _model(model)
    return "\n".join(lines)


def _sections_of(model: type[BaseModel]) -> list[type[BaseModel]]:
    found: list[type[BaseModel]] = []
    for field in model.model_fields.values():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in found:
                found += [kind, *_sections_of(kind)]
    return found


def _model(model: type[BaseModel]) -> Iterator[str]:
    yield from (f"### {model.__name__}", "", _text(" ".join((model.__doc__ or "").split())), "")
    yield from ("| field | type | default | |", "|---|---|---|---|")
    for name, field in model.model_fields.items():
        kind = _cell(_type(field.annotation)) + _bounds(field)
        yield f"| `{name}` | {kind} | {_field_default(field)} | {_cell(field.description or '')} |"
    yield ""


def _type(annotation: Any) -> str:
    if annotation is type(None):
        return "none"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_type(each) for each in arguments if each is not type(None))
    if origin in (list, tuple):
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"map of {_type(arguments[1])}"
    if origin is not None:  # Annotated
        return _type(arguments[0])
    known = {str: "text", int: "integer", float: "number", bool: "true/false", Path: "file", SecretStr: "secret"}
    return known.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _bounds(field: FieldInfo) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [f"{signs[name]} {getattr(rule, name)}" for rule in field.metadata for name in signs if hasattr(rule, name)]
    return _cell(f", {', '.join(found)}") if found else ""


def _field_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ((), [], {}) or isinstance(value, BaseModel):
        return ""
    return _shown(value)


# --- Python ----------------------------------------------------------------------------------------------------------


def python_page() -> str:
    """Return the page of the public names, each for mkdocstrings to fill."""
    import lengthwise

    groups = {
        "Length distributions": ("LengthDistribution", "LogT", "Histogram", "Point"),
        "Predictors": ("load_predictor", "PredictionInput"),
        "Policies": ("Policy", "Job", "make_policy"),
        "Routers": ("Router", "make_router"),
        "Simulation": ("simulate", "Fleet", "load_trace", "compare"),
        "Serving": ("create_app", "rollouts"),
        "Errors": ("InputError",),
    }
    left = set(lengthwise.__all__) - {name for names in groups.values() for name in names} - {"__version__"}
    lines = [
        "# Python",
        "",
        PYTHON_INTRODUCTION,
        "",
    ]
    for title, names in (groups | ({"Further": tuple(sorted(left))} if left else {})).items():
        lines += [f"## {title}", ""]
        for name in names:
            made = getattr(lengthwise, name)
            lines += [f"::: {made.__module__}.{made.__qualname__}", ""]
    return "\n".join(lines)


# --- metrics ---------------------------------------------------------------------------------------------------------


async def metric_families() -> list[tuple[str, str, list[str], str]]:
    """Return name, type, labels and text of every metric, those of optional parts included."""
    from lengthwise.gateway import GatewayConfig, create_app

    with tempfile.TemporaryDirectory() as folder:
        fields = {
            "engines": ["http://127.0.0.1:1", "http://127.0.0.1:2"],
            "router": "round_robin",
            "predictor": "none",
            "access_log": f"{folder}/access.log",
            "log": f"{folder}/log",
            "state": f"{folder}/state",
        }
        app = create_app(GatewayConfig.model_validate(fields))
        return sorted(app.state.metrics.families())


def metrics_page() -> str:
    """Return the page of the metrics."""
    families = asyncio.run(metric_families())
    rows = [f"| `{name}` | {kind} | {', '.join(labels)} | {text} |" for name, kind, labels, text in families]
    return METRICS_INTRODUCTION + "\n".join(rows) + "\n"


if __name__ == "__main__":
    METRICS.write_text(metrics_page(), encoding="utf-8")
