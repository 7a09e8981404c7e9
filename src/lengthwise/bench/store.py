"""The folder of a measurement: `bench.json` (what is measured, on what, each episode) and `requests.parquet`.

A block is saved when all its episodes are complete; an interrupted block is run again. The two files are all that the
analysis reads, so they can be published.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lengthwise.bench.episodes import Turn
from lengthwise.errors import InputError
from lengthwise.files import atomic_path, read_parquet_table
from lengthwise.traffic.rows import row_schema

SCHEMA: Final = pa.unify_schemas(
    [
        pa.schema(
            [
                ("kind", pa.string()),
                ("block", pa.int64()),
                ("place", pa.int64()),  # in the order of the block
                ("copy", pa.int64()),
                ("prompt", pa.int64()),  # index of the prompt in its data
                ("due_s", pa.float64()),  # when it is sent, by the block's traffic
            ]
        ),
        row_schema(
            (
                *("policy", "predictor", "request", "arrival_s", "first_token_s", "finished_s"),
                *("input_tokens", "output_tokens", "mu", "sigma", "cached_tokens", "preemptions"),
            )
        ),
    ]
)
"""What an episode is, and fields of `RequestRow`: seconds from the start of the episode, the prediction used last."""


class BenchStore:
    """Reads and writes the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._json = folder / "bench.json"
        self._rows = folder / "requests.parquet"

    @property
    def steps(self) -> Path:
        """The step log of an engine that the bench starts."""
        return self.folder / "steps.parquet"

    def settings(self) -> dict[str, Any]:
        """Return what is measured and on what; empty before the first run."""
        return dict(self._read().get("settings", {}))

    def episodes(self) -> list[dict[str, Any]]:
        """Return what was observed of each complete episode."""
        return list(self._read().get("episodes", []))

    def rows(self) -> pa.Table:
        """Return the requests of complete blocks."""
        if not self._rows.is_file():
            return SCHEMA.empty_table()
        table = read_parquet_table(self._rows)
        if missing := sorted(set(SCHEMA.names) - set(table.column_names)):
            hint = "it is of an older lengthwise: measure again"
            raise InputError(f"has no column {missing[0]}", source=self._rows, hint=hint)
        return table

    def update(self, settings: Mapping[str, Any]) -> None:
        """Write settings; InputError if the folder was measured with other ones."""
        saved = self.settings()
        for name, value in settings.items():
            if name in saved and saved[name] != value:
                raise InputError(
                    f"was measured with {name} {saved[name]!r}, not {value!r}",
                    source=self.folder,
                    hint="give another --out, or the options of that measurement",
                )
        self._write({**self._read(), "settings": {**saved, **settings}})

    def has(self, block: Sequence[Turn]) -> bool:
        """Whether a block is complete."""
        return any((each["kind"], each["block"]) == (block[0].kind.name, block[0].block) for each in self.episodes())

    def add(self, episodes: Sequence[Mapping[str, Any]], rows: pa.Table) -> None:
        """Save a complete block: the rows first, so that no episode is listed without them."""
        before = self.rows()
        kind, block = episodes[0]["kind"], episodes[0]["block"]
        keys = zip(before["kind"].to_pylist(), before["block"].to_pylist(), strict=True)
        keep = pa.array([key != (kind, block) for key in keys], pa.bool_())
        with atomic_path(self._rows) as path:
            pq.write_table(pa.concat_tables([before.filter(keep), rows]), path, compression="zstd")
        data = self._read()
        self._write({**data, "episodes": [*data.get("episodes", []), *episodes]})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder: two measurements at once would disturb each other."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError("is in use", source=self.folder, hint="wait for the other bench") from error
            yield

    def _read(self) -> dict[str, Any]:
        if not self._json.is_file():
            return {}
        try:
            data = json.loads(self._json.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError("is not JSON", source=self._json, hint="delete it to start anew") from error
        return data if isinstance(data, dict) else {}

    def _write(self, data: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(self._json) as path:
            path.write_text(json.dumps(data, indent=1), encoding="utf-8")


@dataclass(frozen=True, eq=False)
class Measured:
    """What the complete blocks of one or several folders hold."""

    settings: Mapping[str, Any]
    """Of the first folder."""
    episodes: Sequence[Mapping[str, Any]]
    rows: pa.Table


def read_measured(store: BenchStore, *others: BenchStore) -> Measured:
    """Read one folder, or several of the same server with other traffic: their blocks are numbered on.

    InputError if there is no complete block, or if the folders are of different servers.
    """
    episodes: list[dict[str, Any]] = []
    tables: list[pa.Table] = []
    for each in (store, *others):
        _check_comparable(each, store)
        first = 1 + max((episode["block"] for episode in episodes), default=-1)
        episodes += [{**episode, "block": episode["block"] + first} for episode in each.episodes()]
        table = each.rows()
        blocks = pc.cast(pc.add(table["block"], first), pa.int64())
        tables.append(table.set_column(table.schema.get_field_index("block"), "block", blocks))
    rows = pa.concat_tables(tables)
    if not len(rows):
        raise InputError("has no complete block", source=store.folder, hint="run the bench first")
    return Measured(store.settings(), episodes, rows)


def _check_comparable(store: BenchStore, first: BenchStore) -> None:
    settings, wanted = _comparable(store.settings()), _comparable(first.settings())
    for name in wanted.keys() | settings.keys():
        if wanted.get(name) != settings.get(name):
            raise InputError(
                f"has {name} {settings.get(name)!r}, and {first.folder} {wanted.get(name)!r}",
                source=store.folder,
                hint="only measurements of the same server and number of requests can be pooled",
            )


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that must agree for blocks to be pooled."""
    found = {name: settings.get(name) for name in ("requests", "data", "machine")}
    found["own_answers"] = False  # measurements from before the option existed
    found |= {name: value for name, value in settings.get("traffic", {}).items() if name != "seed"}
    return found | {name: settings.get("engine", {}).get(name) for name in ("engine", "model", "max_num_seqs")}
