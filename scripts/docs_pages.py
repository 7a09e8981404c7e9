"""The pages that are made from the code, and a hook of MkDocs.

    python -m scripts.docs_pages       # writes docs/reference/{cli,configuration,python,metrics}.md, studies/papers.md

They come from the command line, the pydantic models, the public names of the package, the metrics of the gateway, and
the claims in experiments/papers.toml.
Neither the terminal nor the machine changes a character of them; a test compares them with the code.

The hook adds `project/` from the files at the root of the repository, and pages of docs/ that the navigation of
mkdocs.yml does not name to the section of their folder; named pages that do not exist are left out.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import tempfile
from collections.abc import Callable, Iterator
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
DOCS = ROOT / "docs"
SECTIONS = {"start": "Start", "guides": "Guides", "reference": "Reference", "studies": "Studies"}

CLI_INTRODUCTION = """\
Made from the commands by `python -m scripts.docs_pages`; `lengthwise COMMAND --help` prints the same. A command that
gets a wrong value prints one line that says what would be right, and ends with exit code 2.

**Shell completion.** `lengthwise --install-completion` adds completion of commands and options to bash, zsh, fish or
PowerShell. `lengthwise --show-completion` prints the script instead."""

CONFIGURATION_INTRODUCTION = """\
Made from the models that read the files by `python -m scripts.docs_pages`. An unknown field is an error."""

GATEWAY_INTRODUCTION = """\
`lengthwise serve --config gateway.yaml`. Every field at the top level that holds a single value is also an option of
[`serve`](cli.md#lengthwise-serve) (`queue_timeout_s` is `--queue-timeout-s`) and a variable
(`LENGTHWISE_SERVE_QUEUE_TIMEOUT_S`). An option takes precedence over a variable, a variable over the file. `${NAME}` in
the file is replaced by that variable."""

PYTHON_INTRODUCTION = """\
What `import lengthwise` offers, made from the code by `python -m scripts.docs_pages`. These names are the public
interface; everything else may change between versions. A name is imported at its first use, so an optional package is
needed only by what uses it."""

METRICS_INTRODUCTION = """\
# Metrics

`GET /metrics` of the gateway, in Prometheus's text format. Times are in seconds. Labels are bounded: the configured
engines and tenants, 256 models, and short fixed lists; an engine has its name in the configuration, never its address.
This page is made by `python -m scripts.docs_pages`.

`configs/grafana-dashboard.json` and `configs/prometheus-alerts.yaml` use these names; a test checks that they exist
([dashboard](../guides/dashboard.md#grafana-and-alerts)).

| name | type | labels | meaning |
|---|---|---|---|
"""


def made_pages() -> dict[str, Callable[[], str]]:
    """Return the function that makes each page of docs/ that is made from the code."""
    return {
        "reference/cli.md": cli_page,
        "reference/configuration.md": configuration_page,
        "reference/python.md": python_page,
        "reference/metrics.md": metrics_page,
        "studies/papers.md": papers_page,
    }


@cache
def project_pages() -> dict[str, str]:
    """Return the Markdown of the pages from the root of the repository by their path in the site."""
    return {
        f"project/{name}.md": _links_of_root((ROOT / source).read_text(encoding="utf-8"))
        for name, source in PROJECT.items()
        if (ROOT / source).exists()
    }


# --- hooks -----------------------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave out pages that do not exist, and add those that the navigation does not name."""
    docs = Path(config.docs_dir)
    present = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} | set(project_pages())
    sections: list[Any] = [_existing(entry, present) for entry in config.nav or []]
    named = set(_paths(sections))
    for path in sorted(present - named):
        title = SECTIONS.get(path.partition("/")[0], "Guides")
        next(entry[title] for entry in sections if title in entry).append(path)
    config.nav = sections
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from the root of the repository."""
    from mkdocs.structure.files import File

    for path, content in project_pages().items():
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
    linked = re.sub(r"\bdocs/([\w/-]+?)([\w-]+)\.md(#[\w-]+)?", r"[\2](../\1\2.md\3)", text.replace("\b", "")).strip()
    # A star between words is a star, but for code: between backquotes, or in an indented line.
    return re.sub(r"(`[^`]*`|^    .*$)|(?<=\w)\*(?=\w)", lambda found: found[1] or r"\*", linked, flags=re.MULTILINE)


def _cell(text: str) -> str:
    return " ".join(_text(text).split()).replace("|", "\\|").replace("<", "&lt;")


def _shown(value: object) -> str:
    """Return a default as a user writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    plain = ", ".join(str(each) for each in value) if isinstance(value, list | tuple) else str(value)
    return "`" + plain.replace("|", "\\|") + "`"


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
    lines = ["# Configuration", "", CONFIGURATION_INTRODUCTION, ""]
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


PUBLIC: Final = {
    "Length distributions": ("LengthDistribution", "LogT", "Histogram", "Point"),
    "Predictors": ("predict", "Prediction", "load_predictor", "PredictionInput"),
    "Policies": ("Policy", "Job", "make_policy"),
    "Routers": ("Router", "make_router"),
    "Simulation": ("simulate", "Fleet", "load_trace", "compare"),
    "Serving": ("create_app", "rollouts"),
    "Errors": ("InputError",),
}
_WIDTH: Final = 100  # of a signature on one line


def python_page() -> str:
    """Return the page of the public names: signatures and docstrings, read from the sources."""
    import lengthwise

    listed = {name for names in PUBLIC.values() for name in names}
    left = tuple(sorted(set(lengthwise.__all__) - listed - {"__version__"}))
    lines = ["# Python", "", PYTHON_INTRODUCTION, ""]
    for title, names in (PUBLIC | ({"Further": left} if left else {})).items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += _public_name(getattr(lengthwise, name))
    return "\n".join(lines)


def _public_name(value: Any) -> Iterator[str]:  # a class or a function
    source = Path(inspect.getsourcefile(value) or "").read_text(encoding="utf-8")
    kinds = (ast.ClassDef, ast.FunctionDef)
    node = next(each for each in ast.parse(source).body if isinstance(each, kinds) and each.name == value.__name__)
    yield from (f"### {node.name}", "")
    if isinstance(node, ast.FunctionDef):
        yield from (
            *_code(node.name, _arguments(node.args), _returns(node)),
            "",
            _text(ast.get_docstring(node) or ""),
            "",
        )
        return
    if (arguments := _arguments_of_class(node)) is not None:
        yield from (*_code(node.name, arguments, ""), "")
    yield from (_text(ast.get_docstring(node) or ""), "")
    members = list(_members(node))
    yield from members
    yield from [""] * bool(members)


def _members(node: ast.ClassDef) -> Iterator[str]:
    """Yield a list entry for each public attribute and method that has a docstring."""
    for member, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            shown, text = member.target.id, _string(following)
        elif isinstance(member, ast.FunctionDef):
            shown, text = _method(node.name, member), ast.get_docstring(member) or ""
        else:
            continue
        if text and not shown.startswith("_"):
            yield f"- `{shown}`: {' '.join(_text(text).split())}"


def _method(of_class: str, node: ast.FunctionDef) -> str:
    """Return a method as it is called; a property has no arguments."""
    decorators = {ast.unparse(each) for each in node.decorator_list}
    if decorators & {"property", "cached_property"}:
        return node.name + _returns(node)
    name = node.name if "classmethod" not in decorators else f"{of_class}.{node.name}"
    return f"{name}({', '.join(_arguments(node.args)[1:])}){_returns(node)}"


def _string(node: ast.stmt | None) -> str:
    """Return the text of a statement that is a string: the docstring of the attribute before it."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return inspect.cleandoc(node.value.value)
    return ""


def _arguments_of_class(node: ast.ClassDef) -> list[str] | None:
    """Return the arguments of the constructor; None for a class that has none of its own."""
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return _arguments(member.args)[1:]
    if not any("dataclass" in ast.unparse(each) for each in node.decorator_list):
        return None
    fields = (member for member in node.body if isinstance(member, ast.AnnAssign))
    return [
        _argument_of(ast.unparse(member.target), member.annotation, member.value)
        for member in fields
        if "init=False" not in ast.unparse(member.value or ast.Constant(None))
    ]


def _arguments(arguments: ast.arguments) -> list[str]:
    first = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(first) - len(arguments.defaults)), *arguments.defaults]
    shown = [_argument_of(each.arg, each.annotation, default) for each, default in zip(first, defaults, strict=True)]
    if arguments.vararg:
        shown.append("*" + _argument_of(arguments.vararg.arg, arguments.vararg.annotation, None))
    elif arguments.kwonlyargs:
        shown.append("*")
    only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    shown += [_argument_of(each.arg, each.annotation, default) for each, default in only]
    if arguments.kwarg:
        shown.append("**" + _argument_of(arguments.kwarg.arg, arguments.kwarg.annotation, None))
    return shown


def _argument_of(name: str, annotation: ast.expr | None, default: ast.expr | None) -> str:
    typed = f"{name}: {ast.unparse(annotation)}" if annotation else name
    if isinstance(default, ast.Call) and ast.unparse(default.func) == "field":  # of a dataclass
        default = next((each.value for each in default.keywords if each.arg == "default"), None)
    return typed + (f" = {ast.unparse(default)}".replace("'", '"') if default else "")


def _returns(node: ast.FunctionDef) -> str:
    return f" -> {ast.unparse(node.returns)}" if node.returns else ""


def _code(name: str, arguments: list[str], returns: str) -> list[str]:
    """Return a signature as indented lines, on one line where it is short."""
    line = f"    {name}({', '.join(arguments)}){returns}"
    if len(line) <= _WIDTH:
        return [line]
    return [f"    {name}(", *(f"        {each}," for each in arguments), f"    ){returns}"]


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


def papers_page() -> str:
    """Return the page of the papers' claims."""
    from experiments import papers  # which MkDocs does not find when it loads this module as a hook

    return papers.page()


if __name__ == "__main__":
    for page, make in made_pages().items():
        (DOCS / page).write_text(make(), encoding="utf-8")
