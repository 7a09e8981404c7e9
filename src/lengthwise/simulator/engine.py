"""One engine in virtual time: the memory that the compiled engine works on, and the answers to its questions."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies import Job, QueueView, Rounds
from lengthwise.policies.base import last_of_largest
from lengthwise.simulator.jobs import Progress
from lengthwise.simulator.kernel import records as r
from lengthwise.simulator.kernel.records import Record, Records
from lengthwise.simulator.layout import engine_record, own_arrays
from lengthwise.simulator.outcome import EngineOutcome, Timeline
from lengthwise.simulator.policy_keys import Desk
from lengthwise.simulator.spec import EngineSpec
from lengthwise.simulator.traffic import Traffic

_ALL: Final = np.iinfo(np.int64).max


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
        self._spec = spec
        self._slots = spec.max_num_seqs
        self._traffic = traffic
        self._rounds = desk.policy.rounds(lambda: spec.max_num_seqs)
        self._jobs: dict[int, Job] = {}
        self._told = self._watched = 0
        self._desk_changed = desk.changed
        self._engine = engine_record(spec, desk, traffic)
        self._engine["decision_s"], self._engine["jumps"] = decision_s, jump
        self._arrays: dict[str, NDArray[Any]] = {}
        arrays = own_arrays(spec, traffic, by_level=desk.policy.rekey == "on_level")
        self._use(**arrays, **traffic.arrays(), keys=desk.keys)
        self.record["rungs"] = traffic.predicted_length.shape[1]
        self.record["positions"] = arrays["tables"].shape[1]

    @property
    def record(self) -> Record:
        """The engine's limits, clock and counts."""
        return self._engine[0]

    def submit(self, rows: NDArray[np.integer]) -> None:
        """Send requests here, in order of arrival, none of them before any that was sent earlier."""
        have, more = int(self.record["n_rows"]), len(rows)
        known = self._arrays["rows"]
        if have + more > len(known):
            before, known = known, np.empty(max(have + more, 2 * have), r.INT)
            known[:have] = before[:have]
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
        record = self.record
        for name, array in arrays.items():
            record[name] = array.ctypes.data
            if name in r.SIZED:
                record[f"{name}_size"] = len(array)
        self._arrays |= arrays

    def cached_tokens(self, row: int) -> int:
        """How much of a request's prompt is in the prefix cache by now."""
        from lengthwise.simulator.kernel.entry import cached

        prompt = int(self._traffic.requests["prompt"][row])
        return int(cached(self._engine, row, prompt + 1)) * self._spec.block_size

    @property
    def settled(self) -> int:
        """Requests that are finished or refused."""
        return int(self.record["settled"])

    def happened(self, until: float) -> list[tuple[int, bool]]:
        """Who was admitted or finished (True) since this was last asked, in order, up to a moment.

        A step that began before that moment may end after it; who finished in it is told next time.
        """
        events = self._arrays["events"]["value"][self._watched : int(self.record["n_events"])]
        rows, finished = np.where(events < 0, -1 - events, events), events < 0
        late = finished & (self._traffic.requests["finish"][rows] > until)
        known = int(np.argmax(late)) if late.any() else len(events)
        self._watched += known
        return list(zip(rows[:known].tolist(), finished[:known].tolist(), strict=True))

    def unfinished(self, by: float) -> NDArray[np.int64]:
        """Rows sent here that have not finished by a moment; those that were refused have been settled."""
        record, requests = self.record, self._traffic.requests
        rows = self._arrays["rows"]["value"][: int(record["n_rows"])].astype(np.int64)
        here = requests[rows]
        refused = (np.arange(len(rows)) < record["arrived"]) & ~self._spec.can_hold(here["prompt"], here["output"])
        return np.asarray(rows[~((here["finish"] <= by) | refused)])

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do nor to tell."""
        record = self.record
        return bool(record["arrived"] == record["n_rows"] and record["settled"] == record["n_rows"]) and bool(
            self._watched == record["n_events"]
        )

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
            engine["answer"] = last_of_largest(policy.eviction_scores(self._desk.jobs.at(self._running(), now), now))
        elif code == r.ASK_ROOM:
            running, candidate = (
                self._desk.jobs.at(who, now) for who in (self._running(), self._waiting(engine["asked"]))
            )
            yields = policy.find_victim(running, candidate, now)
            engine["answer"] = r.NOBODY if yields is None else yields
        elif code == r.ASK_ARRIVAL:
            self._answer_arrival(int(engine["asked"]), now)
        elif code == r.ASK_PREDICTION:
            self._answer_prediction(int(engine["asked"]))
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

    def _answer_prediction(self, row: int) -> None:
        """Give one whose prediction has come its round anew; one that runs has it for when it is over."""
        if self._rounds is not None:
            self._tell_rounds(self._rounds)
            job, requests = self._jobs.get(row), self._traffic.requests
            if job is None:  # refused, or over already
                return
            before = job.median
            self._traffic.jobs.tell(job, row, stage=-1)
            if requests["place"][row] >= 0:
                requests["round"][row] = self._rounds.changed(job, int(requests["round"][row]), before)

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
        return _progress(rows, requests["generated"], requests)

    def _running(self) -> Progress:
        running = self._arrays["running"][: int(self.record["n_running"])]
        rows = running["row"]
        requests = self._traffic.requests[rows]
        return _progress(rows, running["tokens"] - requests["prompt"], requests)

    def _grow(self) -> None:
        full = "waiting" if self.record["n_waiting"] + 1 >= self.record["waiting_size"] else "events"
        self._use(**{full: np.resize(self._arrays[full], 2 * len(self._arrays[full]))})


def _progress(rows: NDArray[np.integer], generated: NDArray[np.integer], requests: Records) -> Progress:
    return Progress(rows, generated, requests["cached"], requests["round"], requests["preemptions"])
