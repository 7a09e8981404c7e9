"""The catalogue of named traces; `load_trace` opens a name or a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from lengthwise.errors import InputError
from lengthwise.workloads.files import VARIABLE, data_home, sample
from lengthwise.workloads.formats import read_workload
from lengthwise.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Trace:
    """A named trace. `file` is relative to LENGTHWISE_DATA, or to the samples if packaged."""

    name: str
    about: str
    licence: str
    source: str
    rows: int
    file: str
    arrivals: bool = True
    prefixes: bool = False
    packaged: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path | None:
        """Path of the file, or None if it is not available."""
        if self.packaged:
            return sample(self.file)
        home = data_home()
        path = None if home is None else home / self.file
        return path if path is not None and path.is_file() else None


_AZURE = "github.com/Azure/AzurePublicDataset, LLM inference trace 2023"
_CATALOGUE = (
    Trace(
        "azure_sample",
        "The first 2,000 requests of azure2023_conv; ships with the package.",
        "CC-BY-4.0",
        _AZURE,
        2_000,
        "azure_sample.parquet",
        packaged=True,
    ),
    Trace(
        "azure2023_conv",
        "An hour of Azure's conversation service.",
        "CC-BY-4.0",
        _AZURE,
        19_366,
        "traces/azure2023_conv.parquet",
    ),
    Trace(
        "azure2023_code",
        "An hour of Azure's code completion service: long prompts, short answers.",
        "CC-BY-4.0",
        _AZURE,
        8_819,
        "traces/azure2023_code.parquet",
    ),
    Trace(
        "mooncake_conversation",
        "An hour of Kimi's conversations with their 512-token blocks; times in ticks of three seconds.",
        "Apache-2.0",
        "github.com/kvcache-ai/Mooncake, conversation trace",
        12_031,
        "traces/mooncake_conversation.parquet",
        prefixes=True,
    ),
    Trace(
        "servegen_m-large",
        "Drawn from ServeGen's published per-client parameters (not a log); the client is the tenant.",
        "Apache-2.0",
        "github.com/alibaba/ServeGen, m-large",
        299_999,
        "traces/servegen_m-large.parquet",
        columns={"client": "tenant"},
    ),
    Trace(
        "lengths_sharegpt_10k_llama2",
        "Lengths of 10,000 ShareGPT turns in Llama-2 tokens; no arrivals.",
        "MIT",
        "github.com/AKafakA/vidur_opt_scheduler, data/trace_data/sharegpt",
        10_000,
        "traces/lengths_sharegpt_10k_llama2.parquet",
        arrivals=False,
    ),
    Trace(
        "lengths_arxiv_summarization",
        "Lengths of arXiv papers and their summaries; no arrivals.",
        "MIT",
        "github.com/microsoft/vidur, data/processed_traces",
        28_257,
        "traces/lengths_arxiv_summarization.parquet",
        arrivals=False,
    ),
    Trace(
        "conv_r8_n100000",
        "azure2023_conv's lengths with Poisson arrivals for 8 engines: what simulators are timed on.",
        "CC-BY-4.0",
        _AZURE,
        100_000,
        "bench/conv_r8_n100000.parquet",
    ),
)
TRACES: Mapping[str, Trace] = {trace.name: trace for trace in _CATALOGUE}


def find_trace(name: str) -> Trace:
    """Return the catalogue's entry; an unknown name is an InputError that suggests similar names."""
    if name in TRACES:
        return TRACES[name]
    near = get_close_matches(name, TRACES, n=3, cutoff=0.4) or TRACES
    raise InputError(
        f"no trace is called '{name}'",
        hint=f"did you mean {', '.join(near)}? A file needs its path, the data folder goes into {VARIABLE}",
    )


def _from_catalogue(name: str, **options: Any) -> Workload:  # noqa: ANN401
    trace = find_trace(name)
    if trace.path is None:
        raise InputError(
            "is in the catalogue, but its file is not on this machine",
            source=name,
            hint=f"set {VARIABLE} to the folder that holds {trace.file} (from {trace.source})",
        )
    known = {"name": name, "columns": trace.columns, "need_arrivals": trace.arrivals}
    return read_workload(trace.path, **{**options, **known})


def load_trace(name_or_path: str | Path, **options: Any) -> Workload:  # noqa: ANN401
    """Load a trace by its name in the catalogue or by its path; `options` are those of `read_workload`."""
    text = str(name_or_path)
    path = Path(name_or_path)
    looks_like_a_path = path.suffix in {".csv", ".gz", ".json", ".jsonl", ".parquet"} or len(path.parts) > 1
    if text in TRACES or not (looks_like_a_path or path.exists()):
        return _from_catalogue(text, **options)
    return read_workload(path, **options)
