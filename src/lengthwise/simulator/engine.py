"""One engine in virtual time: the memory that the compiled engine works on, and the answers to its questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from lengthwise.errors import InputError
from lengthwise.policies import QueueView
from lengthwise.policies.base import last_of_largest
from lengthwise.simulator.jobs import Progress
from lengthwise.simulator.kernel import records as r
from lengthwise.simulator.outcome import EngineOutcome, Timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lengthwise.policies import Job, Rounds
    from lengthwise.simulator.desk import Desk
    from lengthwise.simulator.kernel.records import Record, Records
    from lengthwise.simulator.spec import EngineSpec
    from lengthwise.simulator.traffic import Traffic

_ALL: Final = np.iinfo(np.int64).max
_SAMPLES = 1024
_SAMPLE_EVERY_S = 0.25
_LEVELS = 4096  # remembered answers: a power of two
_REKEY = {"never": r.NEVER, "on_level": r.ON_LEVEL, "on_progress": r.ON_PROGRESS, "on_time": r.ON_TIME}
_ADMISSION = {"prompt": r.WHOLE_PROMPT, "peak": r.FUTURE_PEAK, "reserve": r.RESERVATION}


class Engine:
    """An engine of the given kind, with nobody in it.

    It writes to the traffic's requests, which engines share, but only to those that are sent to it.
    """

    def __init__(
        self, spec: EngineSpec, desk: Desk, traffic: Traffic, *, decision_s: float = 0.0, jump: bool = True
    ) -> None:
        from lengthwise.simulator.kernel.entry import advance  # the compiler is loaded only when it is needed

        self._advance = advance
        self._desk = desk
        self._slots = spec.max_num_seqs
        self._traffic = traffic
        self._rounds = desk.policy.rounds(lambda: spec.max_num_seqs)
        self._jobs: dict[int, Job] = {}
        self._told = 0
        self._desk_changed = desk.changed
        self._engine = _record(spec, desk, traffic)
        self._engine["decision_s"], self._engine["jumps"] = decision_s, jump
        self._arrays: dict[str, NDArray[Any]] = {}
        self._use(**_own_arrays(spec, traffic), **traffic.arrays(), keys=desk.keys)

    @property
    def record(self) -> Record:
        """The engine's limits, clock and counts."""
        return self._engine[0]

    def submit(self, rows: NDArray[np.integer]) -> None:
        """Send requests here, in order of arrival, none of them before any that was sent earlier."""
        have, more = int(self.record["n_rows"]), len(rows)
        known = self._arrays["rows"]
        if have + more > len(known):
            known = np.resize(known, max(have + more, 2 * have))
            self._use(rows=known)
        known["value"][have : have + more] = rows
        self.record["n_rows"] += more

    def advance(self, until: float = np.inf, *, settle: int | None = None) -> bool:
        """Run every step that begins before `until`, or until so many more are settled; whether that was all."""
        record = self.record
        record["pause_at"] = _ALL if settle is None else record["settled"] + settle
        while True:
            if self._arrays["keys"] is not self._desk.keys:
                self._use(keys=self._desk.keys)
            code = self._advance(self._engine, until)
            if code in (r.DONE, r.PAUSED):
                return bool(code == r.DONE)
            self._answer(code)

    def _use(self, **arrays: NDArray[Any]) -> None:
        """Let the compiled engine work on these arrays: it gets their addresses, and they are kept alive here."""
        for name, array in arrays.items():
            self._arrays[name] = array
            self.record[name] = array.ctypes.data
            if name in r.SIZED:
                self.record[f"{name}_size"] = len(array)
        self.record["rungs"] = self._arrays["believed"].shape[1]
        self.record["positions"] = self._arrays["tables"].shape[1]

    @property
    def settled(self) -> int:
        """Requests that are finished or refused."""
        return int(self.record["settled"])

    def outcome(self) -> EngineOutcome:
        """What it did so far."""
        record = self.record
        events = self._arrays["events"]["value"][: int(record["n_events"])]
        samples = self._arrays["samples"][: int(record["n_samples"])]
        blocks, busy_s = int(record["n_blocks"]), float(record["busy_s"])
        return EngineOutcome(
            steps=int(record["steps"]),
            busy_s=busy_s,
            kv_mean=float(record["block_seconds"]) / (busy_s * blocks) if busy_s else 0.0,
            kv_peak=int(record["peak_blocks"]) / blocks,
            admissions=events[events >= 0],
            timeline=Timeline(
                samples["time"].copy(),
                samples["waiting"].copy(),
                samples["running"].copy(),
                samples["blocks"] / blocks,
            ),
        )

    @property
    def _view(self) -> QueueView:
        engine = self.record
        return QueueView(int(engine["n_waiting"]), int(engine["n_running"]), self._slots)

    def _answer(self, code: int) -> None:
        engine, policy = self.record, self._desk.policy
        now = float(engine["now"])
        if code == r.ASK_LEVEL:
            self._answer_level()
        elif code == r.ASK_KEYS:
            self._desk.rekey(self._waiting(self._arrays["waiting"]["row"][: int(engine["n_waiting"])]), self._view, now)
            engine["keyed_at"], engine["column"] = now, r.STALE
        elif code == r.ASK_KEY:
            self._desk.rekey(self._waiting(engine["asked"]), self._view, now)
        elif code == r.ASK_VICTIM:
            engine["answer"] = last_of_largest(policy.yielding(self._desk.jobs.at(self._running(), now), now))
        elif code == r.ASK_ROOM:
            running, candidate = (
                self._desk.jobs.at(who, now) for who in (self._running(), self._waiting(engine["asked"]))
            )
            yields = policy.makes_room(running, candidate, now)
            engine["answer"] = r.NOBODY if yields is None else yields
        elif code == r.ASK_ARRIVAL:
            self._answer_arrival(int(engine["asked"]), now)
        elif code == r.ASK_BELIEF:
            self._answer_belief(int(engine["asked"]))
        else:
            self._grow()

    def _answer_level(self) -> None:
        view, engine = self._view, self.record
        column = self._desk.column(view)
        levels = self._arrays["levels"]
        if self._desk_changed != self._desk.changed:
            self._desk_changed = self._desk.changed
            levels["pair"] = -1
            engine["column"] = r.STALE
        pair = view.waiting * (view.slots + 1) + view.running
        levels[pair & (len(levels) - 1)] = (pair, column)

    def _answer_arrival(self, row: int, now: float) -> None:
        """Give one that comes its round and its key, once the rounds know who was admitted and who finished."""
        if self._rounds is not None:
            self._tell_rounds(self._rounds)
            self._jobs[row] = job = self._traffic.job(row)
            self._traffic.requests["round"][row] = self._rounds.enter(job)
        if self._desk.policy.rekey == "on_progress":
            self._desk.rekey(self._waiting(row), self._view, now)

    def _answer_belief(self, row: int) -> None:
        """Give one whose belief has come its round anew."""
        if self._rounds is not None:
            self._tell_rounds(self._rounds)
            job, rounds = self._jobs[row], self._traffic.requests["round"]
            before = job.median
            self._traffic.jobs.tell(job, row, stage=-1)
            rounds[row] = self._rounds.changed(job, int(rounds[row]), before)

    def _tell_rounds(self, rounds: Rounds) -> None:
        """Let the rounds know who was admitted and who finished since they were last asked."""
        requests = self._traffic.requests
        for event in self._arrays["events"]["value"][self._told : int(self.record["n_events"])].tolist():
            if event >= 0:
                rounds.admitted(int(requests["round"][event]))
            else:
                job = self._jobs.pop(-1 - event)
                job.generated = int(requests["generated"][-1 - event])
                rounds.finished(job)
        self._told = int(self.record["n_events"])

    def _waiting(self, rows: NDArray[np.integer] | int) -> Progress:
        rows = np.atleast_1d(rows)
        requests = self._traffic.requests[rows]
        return Progress(rows, requests["generated"], requests["cached"], requests["round"])

    def _running(self) -> Progress:
        running = self._arrays["running"][: int(self.record["n_running"])]
        rows = running["row"]
        requests = self._traffic.requests[rows]
        return Progress(rows, running["tokens"] - requests["prompt"], requests["cached"], requests["round"])

    def _grow(self) -> None:
        full = "waiting" if self.record["n_waiting"] + 1 >= self.record["waiting_size"] else "events"
        self._use(**{full: np.resize(self._arrays[full], 2 * len(self._arrays[full]))})


def _record(spec: EngineSpec, desk: Desk, traffic: Traffic) -> Records:
    """An engine's record with its limits and options, before it has any memory."""
    engine = np.zeros(1, r.ENGINE)
    record, policy = engine[0], desk.policy
    for limit in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"):
        record[limit] = getattr(spec, limit)
    record["n_blocks"] = record["free"] = spec.kv_blocks
    record["cost"] = spec.cost.parameters()
    record["rekey"], record["preempts"] = _REKEY[policy.rekey], policy.preempts
    record["asks_again"] = policy.asks_again
    told = spec.prefix_caching and traffic.workload.has_blocks
    record["looks_up"] = told and (policy.rekey in ("on_progress", "on_time") or policy.rounds() is not None)
    record["asks_arrivals"] = policy.rounds() is not None or (told and policy.rekey == "on_progress")
    record["caches"] = _caches(spec, traffic)
    record["hash_parts"], record["hash_joins"] = _hash_units(spec, traffic)
    record["admission"] = _ADMISSION[spec.admission]
    record["belief_delay"] = desk.jobs.delay_s
    record["answer"] = r.NO_ANSWER
    for row in ("asked", "pending", "room_asked", "kept_first", "kept_last"):
        record[row] = r.NOBODY
    record["keyed_at"] = -np.inf
    record["column"] = r.STALE if policy.rekey == "on_level" else 0
    record["sample_every"] = _SAMPLE_EVERY_S
    record["stages"] = len(desk.jobs.tables)
    return cast("Records", engine)


def _own_arrays(spec: EngineSpec, traffic: Traffic) -> dict[str, NDArray[Any]]:
    """The arrays of an engine with nobody in it, all of its memory free."""
    seqs = min(spec.max_num_seqs, len(traffic.requests))
    blocks, slots, tables = 0, 1, (1, 1)
    if _caches(spec, traffic) == r.BY_BLOCK:
        blocks = spec.kv_blocks
        slots = 1 << (2 * blocks).bit_length()
        longest = (traffic.requests["prompt"] + traffic.requests["output"]).max(initial=1)
        tables = (seqs, -(-min(int(longest), spec.max_model_len) // spec.block_size))
    free = np.zeros(blocks + 1, r.BLOCK)
    free["before"], free["after"] = np.arange(-1, blocks), np.arange(1, blocks + 2)
    free["before"][0], free["after"][-1] = blocks, 0
    levels = np.zeros(_LEVELS, r.LEVEL)
    levels["pair"] = -1
    return {
        "rows": np.empty(64, r.INT),
        "waiting": np.empty(64, r.WAITING),
        "running": np.empty(seqs + 1, r.RUNNING),
        "levels": levels,
        "events": np.empty(1024, r.INT),
        "samples": np.empty(_SAMPLES, r.SAMPLE),
        "blocks": free,
        "index": np.zeros(slots, r.INDEX),
        "tables": np.empty(tables, r.INT),
        "scratch": np.empty(seqs + 2, r.SCRATCH),
        "free_tables": np.arange(seqs, dtype=np.int32).view(r.INT),
    }


def _caches(spec: EngineSpec, traffic: Traffic) -> int:
    """What can be found again: blocks need names only where requests may begin alike."""
    if not spec.prefix_caching:
        return r.NOTHING
    return r.BY_BLOCK if traffic.workload.has_blocks else r.OWN_ONLY


def _hash_units(spec: EngineSpec, traffic: Traffic) -> tuple[int, int]:
    """Engine blocks in a block of the workload's hashes, or 0 and how many of those make an engine block."""
    theirs, ours = traffic.workload.block_size, spec.block_size
    if theirs is None or not spec.prefix_caching:
        return 1, 1
    if theirs % ours and ours % theirs:
        raise InputError(
            f"blocks of {ours} tokens, where the workload's prefixes are known in blocks of {theirs}",
            source=spec.name,
            field="block_size",
            hint=f"take one that divides {theirs} or is a multiple of it, or switch prefix caching off",
        )
    return theirs // ours, ours // theirs
