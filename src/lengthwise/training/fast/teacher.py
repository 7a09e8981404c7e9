"""What a teacher says about prompts, as targets: asked once, kept in one file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lengthwise.errors import InputError
from lengthwise.predictors.encoder.readout import log_sigma
from lengthwise.predictors.fast.predictor import OUTPUTS
from lengthwise.workloads.files import read_parquet_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_FIELDS: Final = ("prompt", "outputs")


class Teacher(Protocol):
    """A log-t encoder."""

    llms: tuple[str, ...]

    def outputs(self, texts: Sequence[str]) -> Floats:
        """Return mu, raw log sigma, log mean and log std for every known LLM and the unknown one."""


@dataclass(frozen=True, eq=False)
class Lessons:
    """Log median, log sigma, log mean and log std of prompts x LLMs."""

    texts: tuple[str, ...]
    llms: tuple[str, ...]
    outputs: Floats

    @classmethod
    def of(cls, teacher: Teacher, texts: Sequence[str], progress: Callable[[int], None] = lambda _: None) -> Lessons:
        """Ask a teacher about each text once."""
        said = []
        for number, text in enumerate(texts):
            said.append(teacher.outputs([text])[0, : len(teacher.llms)])
            progress(number + 1)
        outputs = np.stack(said)
        outputs[..., 1] = log_sigma(outputs[..., 1])
        return cls(tuple(texts), teacher.llms, outputs)

    def about(self, texts: Sequence[str], llms: Sequence[str]) -> Floats:
        """Return what is said of these texts and LLMs, (texts, LLMs, 4); NaN where nothing is."""
        places = {text: place for place, text in enumerate(self.texts)}
        rows = np.array([places.get(text, -1) for text in texts])
        found = np.full((len(texts), len(llms), OUTPUTS), np.nan, np.float32)
        for column, llm in enumerate(llms):
            if llm in self.llms:
                found[rows >= 0, column] = self.outputs[rows[rows >= 0], self.llms.index(llm)]
        return found

    def covering(self, texts: Sequence[str], source: Path) -> Lessons:
        """Return these lessons if they are about all of the texts."""
        missing = len(set(texts) - set(self.texts))
        if missing:
            raise InputError(
                f"says nothing of {missing} prompts", source=source, hint="remove it to ask the teacher again"
            )
        return self

    def fingerprint(self) -> str:
        """Tell these lessons from others."""
        return hashlib.sha256("\x00".join(self.texts).encode("utf-8", "replace") + self.outputs.tobytes()).hexdigest()

    def write(self, path: Path) -> None:
        """Write one Parquet file."""
        flat = pa.FixedSizeListArray.from_arrays(pa.array(self.outputs.ravel()), self.outputs[0].size)
        table = pa.table({"prompt": pa.array(self.texts), "outputs": flat})
        pq.write_table(table.replace_schema_metadata({"llms": json.dumps(self.llms)}), path, compression="zstd")

    @classmethod
    def read(cls, path: Path) -> Lessons:
        """Read what `write` wrote."""
        table = read_parquet_table(path)
        metadata = table.schema.metadata or {}
        if b"llms" not in metadata or any(name not in table.column_names for name in _FIELDS):
            raise InputError(
                "holds no teacher's outputs", source=path, hint=f"columns {', '.join(_FIELDS)}, and llms as metadata"
            )
        llms = tuple(json.loads(metadata[b"llms"]))
        outputs = np.asarray(table["outputs"].combine_chunks().flatten(), np.float32)
        return cls(tuple(table["prompt"].to_pylist()), llms, outputs.reshape(-1, len(llms), OUTPUTS))
