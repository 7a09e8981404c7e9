"""Predictions of a teacher for prompts, as further targets of the fast predictor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.predictors.encoder import log_sigma
from lengthwise.predictors.fast import OUTPUTS
from lengthwise.workloads.files import read_parquet_table

Floats = NDArray[np.float32]

_FIELDS: Final = ("prompt", "outputs")


class Teacher(Protocol):
    """A log-t encoder."""

    llms: tuple[str, ...]

    def outputs(self, texts: Sequence[str]) -> Floats:
        """Return mu, raw log sigma, log mean and log std for every known LLM and the unknown one."""


@dataclass(frozen=True, eq=False)
class TeacherOutputs:
    """Log median, log sigma, log mean and log std of prompts x LLMs."""

    texts: tuple[str, ...]
    llms: tuple[str, ...]
    outputs: Floats

    @classmethod
    def of(
        cls, teacher: Teacher, texts: Sequence[str], progress: Callable[[int], None] = lambda _: None
    ) -> TeacherOutputs:
        """Compute the outputs of a teacher for each text."""
        found = []
        for number, text in enumerate(texts):
            found.append(teacher.outputs([text])[0, : len(teacher.llms)])
            progress(number + 1)
        outputs = np.stack(found)
        outputs[..., 1] = log_sigma(outputs[..., 1])
        return cls(tuple(texts), teacher.llms, outputs)

    def select(self, texts: Sequence[str], llms: Sequence[str]) -> Floats:
        """Return the outputs for these texts and LLMs, (texts, LLMs, 4); NaN where there are none."""
        places = {text: place for place, text in enumerate(self.texts)}
        rows = np.array([places.get(text, -1) for text in texts])
        found = np.full((len(texts), len(llms), OUTPUTS), np.nan, np.float32)
        for column, llm in enumerate(llms):
            if llm in self.llms:
                found[rows >= 0, column] = self.outputs[rows[rows >= 0], self.llms.index(llm)]
        return found

    def fingerprint(self) -> str:
        """Return a hash of texts and outputs."""
        return hashlib.sha256("\x00".join(self.texts).encode("utf-8", "replace") + self.outputs.tobytes()).hexdigest()

    def write(self, path: Path) -> None:
        """Write one Parquet file."""
        flat = pa.FixedSizeListArray.from_arrays(pa.array(self.outputs.ravel()), self.outputs[0].size)
        table = pa.table({"prompt": pa.array(self.texts), "outputs": flat})
        pq.write_table(table.replace_schema_metadata({"llms": json.dumps(self.llms)}), path, compression="zstd")

    @classmethod
    def read(cls, path: Path, texts: Sequence[str] = ()) -> TeacherOutputs:
        """Read a file of `write`; raises InputError if it lacks one of the texts."""
        table = read_parquet_table(path)
        metadata = table.schema.metadata or {}
        if b"llms" not in metadata or any(name not in table.column_names for name in _FIELDS):
            raise InputError(
                "has no outputs of a teacher", source=path, hint=f"columns {', '.join(_FIELDS)}, and llms as metadata"
            )
        missing = len(set(texts) - set(table["prompt"].to_pylist()))
        if missing:
            hint = "remove it to run the teacher again"
            raise InputError(f"has no outputs for {missing} prompts", source=path, hint=hint)
        llms = tuple(json.loads(metadata[b"llms"]))
        outputs = np.asarray(table["outputs"].combine_chunks().flatten(), np.float32)
        return cls(tuple(table["prompt"].to_pylist()), llms, outputs.reshape(-1, len(llms), OUTPUTS))
