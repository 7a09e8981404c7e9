"""The format of a step log: one row per step of an engine, in a Parquet file that carries the facts of its engine.

`vllm.steps` writes it while the engine runs; `simulator.fit` fits `StepCost`, which defines the columns, to it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.files import atomic_path

COLUMNS: Final = (
    "start_s",  # of the step, seconds since 1970
    "seconds",  # to its end; the engine's own work between two steps counts to the later one
    "prompt_tokens",  # computed in this step: n
    "prompt_pairs",  # sum of end^2 - begin^2 over the chunks: q
    "decodes",  # sequences that compute one token over a context: B
    "context_tokens",  # of those contexts, the new ones included: K
    "waiting",  # requests, once this step was scheduled
    "running",
    "schedule_cpu_s",  # CPU time of schedule() on its thread
)
_COUNTS: Final = frozenset({"prompt_tokens", "decodes", "context_tokens", "waiting", "running"})
_FACTS: Final = b"lengthwise.engine"


@dataclass(frozen=True)
class EngineFacts:
    """An engine's identity and limits, under vLLM's names; `kv_tokens` is the KV memory that requests may use."""

    engine: str
    model: str
    kv_tokens: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool
    chunked_prefill: bool


def write_steps(path: Path, rows: NDArray[np.float64], facts: EngineFacts) -> None:
    """Write steps, one per row and their numbers in the order of COLUMNS."""
    columns = {
        name: rows[:, place].astype(np.int64 if name in _COUNTS else np.float64) for place, name in enumerate(COLUMNS)
    }
    table = pa.table(columns).replace_schema_metadata({_FACTS: json.dumps(asdict(facts)).encode()})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary)


def read_steps(path: Path) -> tuple[pa.Table, EngineFacts]:
    """Read a step log and the facts of its engine."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError("cannot be read as Parquet", source=path, hint="give a log that `steps` made") from error
    missing = [name for name in COLUMNS if name not in table.column_names]
    facts = (table.schema.metadata or {}).get(_FACTS)
    if missing or facts is None:
        hint = "give a log that the plug-in made: docs/guides/engine.md, `steps`"
        raise InputError(
            "has no facts of its engine" if facts is None else f"has no column {missing[0]}", source=path, hint=hint
        )
    return table, EngineFacts(**json.loads(facts))
