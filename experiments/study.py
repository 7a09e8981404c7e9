"""How a study is declared, measured, cached and shown.

A study answers one question or repeats one paper. It is a module `experiments.NAME` with one value `STUDY`:

    @dataclass(frozen=True)
    class Grid:                                  # everything that decides the result, with defaults
        seeds: int = 10
        loads: tuple[float, ...] = (0.7, 0.9)
        predictor: str = "default"

    def measure(run: Run, grid: Grid) -> Result: # computes; reports progress; caches simulations by content
        cells = run.results("react", [SimulationTask(...), ...])
        ...

    STUDY = Study(
        name="preble", title="...", question="...", paper="Arango et al., ICLR 2025 workshop", source="CASTILLO",
        grid=Grid(), quick=Grid(seeds=2, loads=(0.9,)), minutes=(60, 3),
        measure=measure, tables=tables, figures=figures, claims=claims,
    )

and a line in `experiments.NAMES`. `tables`, `figures` and `claims` are functions of the result. A `Claim` holds the
paper's value and ours with its interval; all claims of a study are shown in one table. The page and the JSON of a study
are made of them.

The runner needs nothing else: `--set loads=0.7,0.9` replaces a field of the grid, the finished output is cached under
the content of grid, code and data, and `run.results` caches each simulation, so that an interrupted study resumes.
`run.each` does the same for any function of a study, and `table_of` makes a table of a sequence of values.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import inspect
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, get_type_hints

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from experiments.log import cpu_seconds
from lengthwise.errors import InputError
from lengthwise.intervals import Ratio
from lengthwise.predictors.resolve import model_path, parse_predictor_spec
from lengthwise.reports.page import Figure, Origin, command_line, html_page
from lengthwise.reports.tables import Table, multiple, to_json
from lengthwise.reports.verdict import Verdict
from lengthwise.simulator import RequestPredictions, predict_workload
from lengthwise.simulator.tasks import (
    ResultCache,
    TaskRunner,
    Workers,
    code_version,
    content_key,
    file_digest,
    in_processes,
)
from lengthwise.version import ROOT
from lengthwise.workloads import LengthSamples, Workload, load_castillo
from lengthwise.workloads.datasets import PACKAGED
from lengthwise.workloads.traces import SAMPLE_ONLY

GridT = TypeVar("GridT")
ResultT = TypeVar("ResultT")
ItemT = TypeVar("ItemT")
Report = Callable[[str, float], None]


@dataclass(frozen=True)
class SeededGrid:
    """A grid whose intervals are over seeds."""

    seeds: int = 10

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise InputError(f"{self.seeds} seeds", field="seeds", hint="give at least 2: intervals are over seeds")


@dataclass(frozen=True)
class Claim:
    """A statement of a paper: its value, and ours with a 95 % interval.

    `setting` says where ours is measured; the same statement in several settings is one row of the table.
    `neutral` is the value that means no effect (1 for a ratio), None where there is no such value.
    """

    statement: str
    paper: float | None
    ours: Ratio
    setting: str = "ours"
    neutral: float | None = 1.0

    @property
    def verdict(self) -> str:
        """Decided by the interval: the side of `neutral` on which it lies, then whether it holds the paper's value."""
        ours = self.ours
        if math.isnan(ours.ratio) or self.paper is None:
            return "–"
        if self.neutral is not None and ours.low <= self.neutral <= ours.high:
            return "no difference here"
        if self.neutral is not None and (ours.ratio < self.neutral) != (self.paper < self.neutral):
            return "the opposite"
        if ours.low <= self.paper <= ours.high:
            return "the same"
        if self.neutral is None:
            return "higher" if ours.ratio > self.paper else "lower"
        return "same direction, " + ("more" if abs(math.log(ours.ratio)) > abs(math.log(self.paper)) else "less")


@dataclass(frozen=True)
class Output:
    """What a study shows: tables in text, Plotly figures, PNG images (base64, by title), claims as JSON, notes."""

    title: str
    verdict: str
    tables: Sequence[Table]
    figures: Sequence[Figure]
    images: Mapping[str, str]
    claims: Sequence[Mapping[str, Any]]
    notes: Sequence[str]
    """Printed once on stderr: data that is missing and what is used in its place."""

    def json(self) -> str:
        """The answer, the tables as shown, and the claims in numbers."""
        tables = [
            {name: getattr(table, name) for name in ("title", "columns", "rows", "notes")} for table in self.tables
        ]
        return to_json({"answer": self.verdict, "tables": tables, "claims": self.claims})

    def html(self, seed: str = "") -> str:
        """One page that needs no network."""
        images = None if self.figures else self.images
        origin = Origin.here(seed=seed, command=command_line(["python", "-m", "experiments", *sys.argv[1:]]))
        return html_page(
            self.title,
            self.tables,
            verdict=Verdict.of(self.verdict),
            origin=origin,
            figures=self.figures,
            pictures=images,
        )

    def to_cache(self) -> dict[str, Any]:
        """JSON for `ResultCache`."""
        tables = [{**vars(table), "rule_before": sorted(table.rule_before)} for table in self.tables]
        content: dict[str, Any] = json.loads(to_json({**vars(self), "tables": tables}))
        return content

    @classmethod
    def from_cache(cls, content: Mapping[str, Any]) -> Output:
        """The inverse of `to_cache`."""
        tables = [Table(**{**each, "rule_before": frozenset(each["rule_before"])}) for each in content["tables"]]
        return cls(**{**content, "tables": tables, "figures": [Figure(**each) for each in content["figures"]]})


Function = Callable[..., dict[str, Any]]
"""A function at the top of a module whose result is JSON and depends on its arguments and the data alone."""


@dataclass(frozen=True)
class Call:
    """A function and its arguments as a task whose result is cached."""

    function: Function
    arguments: tuple[Any, ...]

    @property
    def key(self) -> str:
        """Digest of the arguments, of the files and predictors that they name, of the code and of the data."""
        used = {getattr(value, "__module__", None) or "" for value in self.function.__globals__.values()}
        files = {inspect.getfile(sys.modules[name]) for name in used if name.startswith("experiments.")}
        return content_key(
            function=self.function.__qualname__,
            arguments=self.arguments,
            inputs=_digest(self.arguments),
            code=(_code_version(), [file_digest(Path(file)) for file in sorted(files)]),
            data=_data_version(os.environ.get("LENGTHWISE_DATA", "")),
        )

    def run(self) -> dict[str, Any]:
        """Call the function."""
        return self.function(*self.arguments)


class Run(TaskRunner):
    """What `measure` works with: the runner of simulations, progress and notes."""

    def __init__(self, results: ResultCache, *, workers: Workers | None = None, report: Report | None = None) -> None:
        super().__init__(results, workers or in_processes(1), report)
        self.notes: list[str] = []

    def each(self, label: str, function: Function, arguments: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
        """The result of a function of a study's module for each tuple of arguments, as in `results`."""
        return self.results(label, [Call(function, given) for given in arguments])

    def part(self, begin: float, end: float, prefix: str = "") -> Report:
        """A progress function for a part of the study, from one share of the whole to another."""
        return lambda what, done: self.report(prefix + what, begin + (end - begin) * done)

    def note(self, text: str) -> None:
        """A line for stderr, repeated when the output comes from the cache."""
        self.notes.append(text)

    def castillo(self, **selection: Any) -> LengthSamples:  # passed on to load_castillo
        """CASTILLO's length samples; without LENGTHWISE_DATA the packaged sample, with a note."""
        samples = load_castillo(**selection)
        if samples.origin == PACKAGED:
            self.note(SAMPLE_ONLY)
        return samples

    @property
    def counts(self) -> tuple[int, int]:
        """Simulations taken from the cache, and computed."""
        return self.from_cache, self.computed


def _nothing(_: object) -> Any:  # an empty list for whatever a study leaves out
    return ()


@dataclass(frozen=True, kw_only=True)
class Study(Generic[GridT, ResultT]):
    """The declaration of a study (see the module's docstring)."""

    name: str
    title: str
    question: str
    """One sentence for `python -m experiments list`."""
    paper: str = ""
    source: str
    """The data it reads."""
    grid: GridT
    quick: GridT
    minutes: tuple[float, float]
    """Of the grid and of the quick one, on two cores."""
    measure: Callable[[Run, GridT], ResultT]
    tables: Callable[[ResultT], Sequence[Table]]
    figures: Callable[[ResultT], Sequence[Figure]] = _nothing
    images: Callable[[ResultT], Mapping[str, str]] = field(default=lambda _: {})
    claims: Callable[[ResultT], Sequence[Claim]] = _nothing
    claim_notes: Callable[[ResultT], Sequence[str]] = _nothing
    answer: Callable[[ResultT], str] = field(default=lambda _: "")
    """The result in a sentence, for the head of the report; without one, how many claims hold, else the question."""
    draw: Callable[[ResultT, Path], None] | None = None
    """Writes the static figure of the documentation (.svg, .png, .pdf); it is in the report if there is no other."""
    serial: bool = False
    """Whether it measures in one process, without `run.results`; such studies run side by side."""
    needs: Callable[[GridT], str | None] = field(default=lambda _: None)
    """What is missing before it can run (an input file, a GPU's results), None if nothing is."""

    def output(self, result: ResultT, notes: Sequence[str] = ()) -> Output:
        """Everything that is shown of a result."""
        claims = list(self.claims(result))
        tables = list(self.tables(result))
        if claims:
            tables.append(claims_table(claims, self.claim_notes(result)))
        answer = self.answer(result) or claims_verdict(claims) or self.question
        figures, images = self.figures(result), self.images(result)
        if self.draw is not None and not figures:
            images = {self.title: _picture(self.draw, result)}
        in_numbers = [{**vars(claim), "verdict": claim.verdict} for claim in claims]
        return Output(self.title, answer, tables, figures, images, in_numbers, notes)

    def with_settings(self, settings: Iterable[str], *, quick: bool) -> GridT:
        """The grid, or the quick one, with `FIELD=VALUE` settings; a tuple's values are separated by commas."""
        grid: Any = self.quick if quick else self.grid
        types = get_type_hints(type(grid))
        given: dict[str, Any] = {}
        for setting in settings:
            name, equals, text = setting.partition("=")
            if name not in types or not equals:
                known = ", ".join(f"{each.name}={_text(getattr(grid, each.name))}" for each in dataclasses.fields(grid))
                raise InputError(f"'{setting}'", field="--set", hint=f"{self.name} has {known}")
            value: Any = text.split(",") if isinstance(getattr(grid, name), tuple) else text
            adapter: TypeAdapter[Any] = TypeAdapter(types[name], config=_LAX)
            try:
                given[name] = adapter.validate_python(value)
            except ValidationError as error:
                raise InputError(f"'{text}'", field=name, hint=error.errors(include_url=False)[0]["msg"]) from None
        replaced: GridT = dataclasses.replace(grid, **given)
        return replaced

    def key(self, grid: GridT) -> str:
        """The content on which the output depends: grid, files and predictors it names, code and data."""
        return content_key(
            study=self.name,
            grid=grid,
            inputs=[_digest(getattr(grid, each.name)) for each in dataclasses.fields(grid)],  # type: ignore[arg-type]
            code=(_code_version(), _experiments_version()),
            data=_listing(os.environ.get("LENGTHWISE_DATA", "")),
        )

    def run(
        self, grid: GridT, results: ResultCache, *, workers: Workers | None = None, report: Report | None = None
    ) -> Finished:
        """Take the output from the cache, or measure and cache it; simulations run in this process, or in `workers`."""
        key = self.key(grid)
        known = results.get(key)
        if known is not None:
            return Finished(Output.from_cache(known["output"]))
        run, began, cpu_began = Run(results, workers=workers, report=report), time.monotonic(), cpu_seconds()
        output = self.output(self.measure(run, grid), run.notes)
        results.put(key, {"output": output.to_cache()})
        return Finished(output, Took(time.monotonic() - began, cpu_seconds() - cpu_began, *run.counts))


def _picture(draw: Callable[[ResultT, Path], None], result: ResultT) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.png"
        draw(result, path)
        return base64.b64encode(path.read_bytes()).decode("ascii")


def run_study(name: str, grid: object, cache_folder: Path) -> dict[str, Any]:
    """Run a study in a worker, where its output goes into the cache; return how long it took."""
    study: Study[Any, Any] = importlib.import_module(f"experiments.{name}").STUDY
    took = study.run(grid, ResultCache(cache_folder)).took
    return {} if took is None else dataclasses.asdict(took)


@dataclass(frozen=True)
class Took:
    """How long a study took, on the clock and in CPU time of all processes, and its simulations by origin."""

    seconds: float
    cpu_s: float
    cached: int
    computed: int


@dataclass(frozen=True)
class Finished:
    """An output and how long it took, None from the cache."""

    output: Output
    took: Took | None = None


def predictions_by_prompt(name: str, workload: Workload, known: Mapping[str, Sequence[float]]) -> RequestPredictions:
    """The predictions of a workload whose mu and sigma are known by prompt."""
    mu, sigma = np.array([known[prompt] for prompt in workload.table["prompt"].to_pylist()]).T
    return dataclasses.replace(predict_workload(workload, "oracle"), predictor=name, mu=mu, sigma=sigma)


def claims_table(claims: Sequence[Claim], notes: Sequence[str] = ()) -> Table:
    """One row per statement, two columns per setting: our value with its interval, and the verdict."""
    settings = list(dict.fromkeys(claim.setting for claim in claims))
    by_place = {(claim.statement, claim.setting): claim for claim in claims}
    rows = []
    for statement in dict.fromkeys(claim.statement for claim in claims):
        row = [by_place.get((statement, setting)) for setting in settings]
        theirs = next(claim.paper for claim in row if claim is not None)
        cells = [("–", "–") if claim is None else (_value(claim.ours), claim.verdict) for claim in row]
        rows.append([statement, "–" if theirs is None else _number(theirs), *(text for cell in cells for text in cell)])
    columns = ["claim", "paper", *(text for setting in settings for text in (setting, ""))]
    return Table("What can be compared", columns, rows, notes)


def claims_verdict(claims: Sequence[Claim]) -> str:
    """Return in words how many of a paper's statements hold here; empty without claims that can be compared."""
    counts = Counter(claim.verdict for claim in claims if claim.verdict != "–")
    if not counts:
        return ""
    parts = ", ".join(f"{verdict}: {count}" for verdict, count in counts.most_common())
    return f"Of {counts.total()} statements that can be compared with the paper, {parts}."


def sections(rows: Sequence[Sequence[str]], key: Callable[[Sequence[str]], str] = lambda row: row[0]) -> frozenset[int]:
    """The rows whose key, the first cell, differs from that of the row above: a table has a rule before them."""
    return frozenset(place for place in range(1, len(rows)) if key(rows[place]) != key(rows[place - 1]))


def table_of(
    title: str,
    items: Sequence[ItemT],
    columns: Sequence[tuple[str, Callable[[ItemT], object]]],
    notes: Sequence[str] = (),
    group: Callable[[ItemT], object] | None = None,
) -> Table:
    """A row per item and a column per heading, with a rule before each new group of items.

    A column returns text, a `Ratio` (shown with its interval), an integer, or None (shown as a dash).
    """
    rows = [[_cell(value(item)) for _, value in columns] for item in items]
    begins = frozenset() if group is None else sections([[str(group(item))] for item in items])
    return Table(title, [heading for heading, _ in columns], rows, notes, begins)


def _cell(value: object) -> str:
    if isinstance(value, Ratio):
        return multiple(value)
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _value(ours: Ratio) -> str:
    """With its interval, where there is one."""
    if ours.low == ours.high:
        return _number(ours.ratio)
    return multiple(ours) if ours.ratio < _LARGE else f"{ours.ratio:,.0f} [{ours.low:,.0f}, {ours.high:,.0f}]"


def _number(value: float) -> str:
    return f"{value:.3f}" if value < _LARGE else f"{value:,.0f}"


_LARGE: Final = 1000.0  # from which no decimals are shown
_LAX = ConfigDict(arbitrary_types_allowed=True)


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _digest(value: object) -> object:
    """The content behind a path or a predictor's name; nothing for plain values."""
    if isinstance(value, tuple):
        return [_digest(each) for each in value]
    if isinstance(value, Path):
        return file_digest(value) if value.is_file() else _listing(str(value))
    if isinstance(value, str):
        try:
            spec = parse_predictor_spec(value)
            path = model_path(spec.model) if spec.kind == "model" and spec.model else None
        except InputError:
            return None
        return file_digest(path) if path is not None and path.is_file() else None
    return None


def _listing(folder: str) -> list[tuple[str, int, int]]:
    """Names, sizes and times of all files in a folder."""
    root = Path(folder)
    if not folder or not root.is_dir():
        return []
    files = ((file, file.stat()) for file in sorted(root.rglob("*")) if file.is_file())
    return [(str(file.relative_to(root)), stat.st_size, stat.st_mtime_ns) for file, stat in files]


@cache
def _data_version(folder: str) -> str:
    return content_key(files=_listing(folder))


@cache
def _code_version() -> tuple[str, str]:
    """The code of simulations, and that of trainings."""
    return code_version(), _files_version(ROOT / "training")


@cache
def _experiments_version() -> str:
    return _files_version(Path(__file__).parent)


def _files_version(folder: Path) -> str:
    digest = sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
