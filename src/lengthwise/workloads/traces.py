"""The catalogue of traces, `load_trace`, which opens a name or a file, and the workloads of a simulation by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from lengthwise.errors import InputError, require_kind
from lengthwise.files import VARIABLE, data_home, sample
from lengthwise.workloads.arrivals import redraw, replay
from lengthwise.workloads.datasets import PACKAGED, castillo_workload, load_castillo
from lengthwise.workloads.formats import read_workload
from lengthwise.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Trace:
    """A named trace: a Parquet file in a folder of LENGTHWISE_DATA, or in the package if packaged."""

    name: str
    about: str
    licence: str
    source: str
    rows: int
    arrivals: bool = True
    prefixes: bool = False
    packaged: bool = False
    folder: str = "traces"
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Path of the file relative to LENGTHWISE_DATA."""
        return f"{self.folder}/{self.name}.parquet"

    @property
    def path(self) -> Path | None:
        """Path of the file, or None if it is not available."""
        if self.packaged:
            return sample(f"{self.name}.parquet")
        home = data_home()
        path = None if home is None else home / self.file
        return path if path is not None and path.is_file() else None


_AZURE = ("CC-BY-4.0", "github.com/Azure/AzurePublicDataset, LLM inference trace 2023")
_CATALOGUE = (
    Trace(
        "azure_sample",
        "The first 2,000 requests of azure2023_conv; ships with the package.",
        *_AZURE,
        2_000,
        packaged=True,
    ),
    Trace("azure2023_conv", "An hour of Azure's conversation service.", *_AZURE, 19_366),
    Trace("azure2023_code", "An hour of Azure's code completion service: long prompts, short answers.", *_AZURE, 8_819),
    Trace(
        "mooncake_conversation",
        "An hour of Kimi's conversations with their 512-token blocks; times in ticks of three seconds.",
        "Apache-2.0",
        "github.com/kvcache-ai/Mooncake, conversation trace",
        12_031,
        prefixes=True,
    ),
    Trace(
        "servegen_m-large",
        "Drawn from ServeGen's published per-client parameters (not a log); the client is the tenant.",
        "Apache-2.0",
        "github.com/alibaba/ServeGen, m-large",
        299_999,
        columns={"client": "tenant"},
    ),
    Trace(
        "lengths_sharegpt_10k_llama2",
        "Lengths of 10,000 ShareGPT turns in Llama-2 tokens; no arrivals.",
        "MIT",
        "github.com/AKafakA/vidur_opt_scheduler, data/trace_data/sharegpt",
        10_000,
        arrivals=False,
    ),
    Trace(
        "lengths_arxiv_summarization",
        "Lengths of arXiv papers and their summaries; no arrivals.",
        "MIT",
        "github.com/microsoft/vidur, data/processed_traces",
        28_257,
        arrivals=False,
    ),
    Trace(
        "conv_r8_n100000",
        "azure2023_conv's lengths with Poisson arrivals for 8 engines: what simulators are timed on.",
        *_AZURE,
        100_000,
        folder="bench",
    ),
)
TRACES: Mapping[str, Trace] = {trace.name: trace for trace in _CATALOGUE}


def find_trace(name: str) -> Trace:
    """Return the catalogue's entry; an unknown name is an InputError that suggests similar names."""
    if name in TRACES:
        return TRACES[name]
    near = get_close_matches(name, TRACES, n=3, cutoff=0.4)
    names = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(TRACES)}."
    raise InputError(
        f"no trace is called '{name}'",
        hint=f"{names} A file needs its path, the data folder goes into {VARIABLE}",
    )


def load_trace(name_or_path: str | Path, **options: Any) -> Workload:
    """Load a trace by its name in the catalogue or by its path; `options` are those of `read_workload`."""
    require_kind(name_or_path, (str, Path), "trace", 'a path, or a name such as "azure_sample"')
    name, path = str(name_or_path), Path(name_or_path)
    looks_like_a_path = path.suffix in {".csv", ".gz", ".json", ".jsonl", ".parquet"} or len(path.parts) > 1
    if name not in TRACES and (looks_like_a_path or path.exists()):
        return read_workload(path, **options)
    trace = find_trace(name)
    if trace.path is None:
        raise InputError(
            "is in the catalogue, but its file is not on this machine",
            source=name,
            hint=f"set {VARIABLE} to the folder that holds {trace.file} (from {trace.source})",
        )
    known = {"name": name, "columns": trace.columns, "need_arrivals": trace.arrivals}
    return read_workload(trace.path, **{**options, **known})


CASTILLO: Final = "castillo"
_CASTILLO_REQUESTS: Final = 1000
_REQUESTS_PER_SLOT: Final = 20  # with fewer no queue forms, even above capacity
SAMPLE_ONLY: Final = (
    "LENGTHWISE_DATA is not set or holds no CASTILLO; using the small sample that ships with the package"
)


@dataclass(frozen=True, slots=True)
class Source:
    """A workload by name: `castillo`, a trace or a file, with the number of requests and the CV of arrivals."""

    name: str
    llm: str = "llama-3.1-8b"
    requests: int | None = None
    cv: float | None = None

    def draws(
        self,
        *,
        own_arrivals: bool,
        slots: int,
        repeats: bool = False,
        on_note: Callable[[str], None] | None = None,
    ) -> Callable[[int], Workload]:
        """Return a function from seed to workload, at one request per second unless the arrivals of the trace are kept.

        The default number of requests grows with `slots`. `repeats`: workloads of different seeds must differ.
        """
        if self.name == CASTILLO:
            return self._castillo(own_arrivals, slots, on_note)
        if get_close_matches(self.name, [CASTILLO], cutoff=0.8) and not Path(self.name).exists():
            raise InputError(f"no workload is called '{self.name}'", hint=f"did you mean {CASTILLO}?")
        # A table of lengths alone is read as a batch; missing arrivals are reported below.
        workload = load_trace(self.name, need_arrivals=False)
        if self.cv is None and workload.has_arrivals:
            if repeats:
                raise InputError(
                    "a trace that is replayed is the same with every seed",
                    source=self.name,
                    field="seeds",
                    hint="draw its requests and arrivals at random with --cv 1",
                )
            replayed = replay(workload, requests=self.requests, rate=None if own_arrivals else 1.0)
            return lambda _: replayed
        self._check_arrivals(own_arrivals, redrawn=workload.has_arrivals)
        n = len(workload) if self.requests is None else self.requests
        cv = 1.0 if self.cv is None else self.cv
        return lambda seed: redraw(workload, requests=n, rate=1.0, seed=seed, cv=cv)

    def _castillo(
        self, own_arrivals: bool, slots: int, on_note: Callable[[str], None] | None
    ) -> Callable[[int], Workload]:
        self._check_arrivals(own_arrivals)
        samples = load_castillo(split="test")
        n = max(_CASTILLO_REQUESTS, _REQUESTS_PER_SLOT * slots) if self.requests is None else self.requests
        cv = 1.0 if self.cv is None else self.cv
        notes = [SAMPLE_ONLY] if samples.origin == PACKAGED and on_note is not None else []

        def draw(seed: int) -> Workload:
            workload = castillo_workload(samples, self.llm, requests=n, rate=1.0, seed=seed, cv=cv)
            if notes and on_note is not None:  # once, and only if the workload could be drawn
                on_note(notes.pop())
            return workload

        return draw

    def _check_arrivals(self, own_arrivals: bool, *, redrawn: bool = False) -> None:
        if own_arrivals:
            what = "drawn arrivals need a rate" if redrawn else "has no arrivals of its own"
            raise InputError(what, source=self.name, hint="give --rate")
