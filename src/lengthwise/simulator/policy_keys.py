"""Where a compiled engine's questions are answered: by the policy itself, on columns."""

from __future__ import annotations

import numpy as np

from lengthwise.policies import JobColumns, Policy, QueueView
from lengthwise.simulator.jobs import Jobs, Progress

_KEYS_BYTES = 64 << 20  # for columns of keys, one per level of the queue


class Desk:
    """Asks the policy for all engines of a simulation.

    `keys[column, stage, request]` holds what can be known ahead: one column where keys never go stale, one for each
    level of the queue where they go stale with it; a stage each for before and after a late prediction.
    """

    def __init__(self, policy: Policy, jobs: Jobs) -> None:
        self.policy = policy
        self.jobs = jobs
        self.changed = 0  # how often columns were given to other levels
        self._columns: dict[int, int] = {}
        self.keys = np.zeros((1, len(jobs.tables), len(jobs)))
        self._most = max(2, _KEYS_BYTES // max(1, self.keys.nbytes))
        if policy.rekey in ("never", "on_progress"):
            self._fill(0, QueueView(), 0.0)

    def column(self, view: QueueView) -> int:
        """The column of keys for the level of a queue."""
        level = self.policy.level(view)
        if level not in self._columns:
            if len(self._columns) == self._most:
                self._columns.clear()
                self.changed += 1
            number = len(self._columns)
            if number == len(self.keys):
                room = min(2 * number, self._most)
                self.keys = np.concatenate([self.keys, np.zeros((room - number, *self.keys.shape[1:]))])
            self._fill(number, view, 0.0)
            self._columns[level] = number
        return self._columns[level]

    def _fill(self, column: int, view: QueueView, now: float) -> None:
        for stage, jobs in enumerate(self.jobs.stages):
            self.keys[column, stage] = self.policy.keys(jobs, view, now)

    def rekey(self, who: Progress, view: QueueView, now: float) -> None:
        """Key some requests anew, as they are now, in the one column that there is."""
        if self.policy.rekey == "on_time":
            self.keys[0, :, who.rows] = self.policy.keys(self.jobs.at(who, now), view, now)[:, None]
            return
        for stage, table in enumerate(self.jobs.tables):  # a prediction may still come while they wait
            self.keys[0, stage, who.rows] = self.policy.keys(JobColumns(*who.of(table)), view, now)
