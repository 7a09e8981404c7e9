"""The folder of results: one folder per cell, written cell by cell, so that a run that was stopped goes on.

A cell is there once its cell.json is, which is written last. What every cell shares (sizes, seed, where it ran) is in
settings.json; results of other sizes do not mix.
"""

from __future__ import annotations

import fcntl
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lengthwise.bench.evidence.plan import Cell
from lengthwise.errors import InputError
from lengthwise.workloads.files import atomic_path, read_parquet_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Order = tuple[str, str]

FORMAT: Final = 1
_SETTINGS: Final = "settings.json"


@dataclass(frozen=True, eq=False)
class Result:
    """A finished cell: what was told of it, and its requests by row of the traffic."""

    cell: Cell
    told: Mapping[str, Any]
    requests: pa.Table

    def column(self, name: str) -> NDArray[np.float64]:
        """A column of the requests as numbers; NaN where there is nothing."""
        values = self.requests[name].cast(pa.float64()).to_numpy(zero_copy_only=False)
        return cast("NDArray[np.float64]", values)

    @property
    def e2e_s(self) -> NDArray[np.float64]:
        """From sending to the last token."""
        return self.column("finished_s") - self.column("sent_s")

    @property
    def ttft_s(self) -> NDArray[np.float64]:
        """From sending to the first token."""
        return self.column("first_token_s") - self.column("sent_s")

    @property
    def per_token_s(self) -> NDArray[np.float64]:
        """E2E latency over output tokens."""
        tokens = self.column("output_tokens")
        return np.asarray(self.e2e_s / np.where(tokens > 0, tokens, np.nan))


@dataclass(frozen=True)
class Store:
    """The results in one folder."""

    folder: Path

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Make the folder, or check that it was begun with the same settings."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / _SETTINGS
        wanted = {"format": FORMAT, **settings}
        if not path.exists():
            _write_json(path, wanted)
            return
        begun = _read_json(path)
        other = [f"{key} {begun[key]!r}, now {now!r}" for key, now in wanted.items() if begun.get(key, now) != now]
        if other:
            raise InputError(
                f"was begun with other settings ({', '.join(other)})",
                source=self.folder,
                hint="ask for the same again, or name another --out",
            )
        if set(wanted) - set(begun):  # begun before there was such a setting
            _write_json(path, {**wanted, **begun})

    @property
    def settings(self) -> dict[str, Any]:
        """What all cells share."""
        path = self.folder / _SETTINGS
        if not path.exists():
            raise InputError("holds no measurement", source=self.folder, hint="run `lengthwise bench engine` first")
        return _read_json(path)

    def place(self, cell: Cell) -> Path:
        """The cell's folder."""
        return self.folder / cell.id

    def has(self, cell: Cell) -> bool:
        """Whether the cell is finished."""
        return (self.place(cell) / "cell.json").is_file()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other commands out: two at once would take each other's cells away, and the machine's time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of a command that was killed nothing is left
            except BlockingIOError as error:
                hint = "wait until it is over, or name another --out"
                raise InputError("another command measures into it", source=self.folder, hint=hint) from error
            yield

    def fresh(self, cell: Cell) -> Path:
        """The folder of a cell about to be run, with what an earlier attempt left taken away."""
        place = self.place(cell)
        place.mkdir(parents=True, exist_ok=True)
        for left in place.iterdir():
            left.unlink()
        return place

    def write(self, cell: Cell, told: Mapping[str, Any], requests: pa.Table) -> None:
        """Keep a cell."""
        place = self.place(cell)
        with atomic_path(place / "requests.parquet") as path:
            pq.write_table(requests, path, compression="zstd")
        named = {
            "format": FORMAT,
            "setting": cell.setting,
            "policy": cell.policy,
            "predictor": cell.predictor,
            "load": cell.load,
            "repeat": cell.repeat,
            "kind": cell.kind,
            "stock": cell.stock,
        }
        _write_json(place / "cell.json", {**named, **told})

    def read(self, cell: Cell) -> Result:
        """A finished cell."""
        place = self.place(cell)
        return Result(cell, _read_json(place / "cell.json"), read_parquet_table(place / "requests.parquet"))

    def results(self) -> list[Result]:
        """Every finished cell."""
        found = []
        for path in sorted(self.folder.glob("*/cell.json")):
            told = _read_json(path)
            cell = Cell(told["setting"], told["policy"], told["predictor"], told["load"], told["repeat"])
            found.append(Result(cell, told, read_parquet_table(path.parent / "requests.parquet")))
        return found


def under_load(results: Sequence[Result]) -> dict[tuple[str, float], dict[Order, dict[int, Result]]]:
    """What was measured under a load, by setting and load, then by policy and predictor, then by repeat."""
    found: dict[tuple[str, float], dict[Order, dict[int, Result]]] = {}
    for result in results:
        cell = result.cell
        if cell.load is not None:
            orders = found.setdefault((cell.setting, cell.load), {})
            orders.setdefault((cell.policy, cell.predictor), {})[cell.repeat] = result
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError("cannot be read", source=path, hint="remove it to have it measured again") from error
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise InputError("is of another format", source=path, hint=f"format {FORMAT} is read")
    return told


def _write_json(path: Path, told: Mapping[str, Any]) -> None:
    with atomic_path(path) as fresh:
        fresh.write_text(json.dumps(told, indent=1, allow_nan=False) + "\n", encoding="utf-8")
