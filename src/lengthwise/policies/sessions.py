"""`sessions(POLICY)`: the requests of agents by the predicted rest of their session, in place of one by one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies.base import parameter
from lengthwise.policies.job import Job
from lengthwise.policies.protocol import Rounds, Slots, one_slot
from lengthwise.policies.wrappers import NestedRounds, RoundsWrapper

TOKENS_PER_ROUND: Final = 16.0  # per slot, as under `lengthwise`
MAX_TURNS: Final = 128  # of a session that are counted apart
MAX_SESSIONS: Final = 4096  # of one tenant, the last used; likewise jobs whose rest is remembered
MAX_TEMPLATES: Final = 256  # of one tenant
MAX_TENANTS: Final = 1024
MAX_SEARCHED: Final = 1024  # of a prompt's last blocks, for the turn that it continues
_PRIOR_SESSIONS: Final = 4.0  # with which a template begins: those of its tenant
_FADE_AT: Final = 4096.0  # turns: then all counts of a template are halved
_FIRST_FURTHER, _FIRST_LENGTH = 1.0, 256.0  # turns to come and tokens of one, where nothing was seen

_V = TypeVar("_V")


@dataclass(slots=True)
class _Turns:
    """What sessions of one template, or of one tenant, have been like."""

    reached: NDArray[np.float64] = field(default_factory=lambda: np.zeros(MAX_TURNS + 1))
    """How many sessions had a turn of each number."""
    ended: float = 0.0
    tokens: float = 0.0
    """Of the turns that ended."""

    def count(self, turn: int) -> None:
        self.reached[turn] += 1.0
        if self.reached[1] > _FADE_AT:
            self.reached *= 0.5

    def finish(self, tokens: int) -> None:
        self.ended, self.tokens = self.ended + 1.0, self.tokens + tokens
        if self.ended > _FADE_AT:
            self.ended, self.tokens = 0.5 * self.ended, 0.5 * self.tokens

    def further(self, turn: int, prior: float) -> float:
        """Return the expected number of turns after this one."""
        later = float(self.reached[turn + 1 :].sum())
        return (later + _PRIOR_SESSIONS * prior) / (float(self.reached[turn]) + _PRIOR_SESSIONS)

    def length(self, prior: float) -> float:
        """Return the mean tokens of a turn."""
        return (self.tokens + _PRIOR_SESSIONS * prior) / (self.ended + _PRIOR_SESSIONS)


@dataclass(slots=True)
class _Session:
    turns: int = 0


@dataclass(slots=True)
class _Tenant:
    """Sessions and templates of one tenant; those of other tenants do not count."""

    all: _Turns = field(default_factory=_Turns)
    templates: OrderedDict[str | int, _Turns] = field(default_factory=OrderedDict)
    named: OrderedDict[str, _Session] = field(default_factory=OrderedDict)
    by_last_block: OrderedDict[int, tuple[int, _Session]] = field(default_factory=OrderedDict)
    """Of requests that name no session: the last block of a prompt, its number of blocks, and the session."""

    def session(self, job: Job) -> _Session:
        """Return the session of a request: the one that it names, else the one whose prompt its prompt continues."""
        if job.session is not None:
            return _recent(self.named, job.session, _Session, MAX_SESSIONS)
        blocks = len(job.blocks)
        if not blocks:
            return _Session()
        found = _Session()
        for block in _last(job.blocks):
            length, known = self.by_last_block.get(block, (blocks, found))
            if length < blocks:
                del self.by_last_block[block]
                found = known
                break
        self.by_last_block[int(job.blocks[-1])] = blocks, found
        if len(self.by_last_block) > MAX_SESSIONS:
            self.by_last_block.popitem(last=False)
        return found

    def template(self, job: Job) -> _Turns:
        """Return the record of the job's template: the one that it names, else its first block, the system prompt."""
        name = job.template if job.template is not None else int(job.blocks[0]) if len(job.blocks) else ""
        return _recent(self.templates, name, _Turns, MAX_TEMPLATES)


def _last(blocks: Sequence[int] | NDArray[np.uint64]) -> list[int]:
    return [int(block) for block in blocks[-MAX_SEARCHED:]][::-1]


def _recent(known: OrderedDict[Any, _V], name: Any, make: type[_V], most: int) -> _V:
    """Return the value of a name, a new one if it has none; beyond `most` the least recently used is forgotten."""
    found = known.get(name)
    if found is None:
        found = known[name] = make()
        if len(known) > most:
            known.popitem(last=False)
    known.move_to_end(name)
    return found


@dataclass(slots=True)
class _ByRest:
    """Rounds by place: the work that had arrived before a job, and the weighted rest of its session."""

    weight: float
    most: float
    slots: Slots
    arrived: float = 0.0
    """Tokens of work per slot."""
    tenants: OrderedDict[str, _Tenant] = field(default_factory=OrderedDict)
    entered: OrderedDict[str, tuple[float, float, _Turns, _Turns]] = field(default_factory=OrderedDict)
    """By job: the work before it, tokens of the turns to come, and the records of its template and tenant."""

    def enter(self, job: Job) -> int:
        tenant = _recent(self.tenants, job.tenant or "", _Tenant, MAX_TENANTS)
        session, template = tenant.session(job), tenant.template(job)
        session.turns = turn = min(session.turns + 1, MAX_TURNS)
        # Expected before the turn is counted, so that the first of a kind does not predict itself to be the last.
        further = template.further(turn, tenant.all.further(turn, _FIRST_FURTHER))
        to_come = further * template.length(tenant.all.length(_FIRST_LENGTH))
        for record in (template, tenant.all):
            record.count(turn)
        self.entered[job.id] = self.arrived, to_come, template, tenant.all
        if len(self.entered) > MAX_SESSIONS * 16:
            self.entered.popitem(last=False)
        place = self._round(job, self.arrived, to_come)
        self.arrived += max(1.0, min(job.expected, self.most)) / max(1, self.slots())
        return place

    def _round(self, job: Job, before: float, to_come: float) -> int:
        return int((before + self.weight * min(job.expected + to_come, self.most)) // TOKENS_PER_ROUND)

    def prediction_changed(self, job: Job, round_number: int, old_median: float) -> int:
        known = self.entered.get(job.id)
        return round_number if known is None else self._round(job, *known[:2])

    def admitted(self, round_number: int) -> None:
        """Do nothing: rounds do not depend on what is served."""

    def finished(self, job: Job) -> None:
        known = self.entered.pop(job.id, None)
        if known is not None and job.used_tokens is None:
            for record in known[2:]:
                record.finish(job.generated)


@dataclass(frozen=True)
class Sessions(RoundsWrapper):
    """The least predicted rest of the session first, aged: `sessions(fcfs)`, for agents that wait for their session.

    round = (A + weight * min(rest, most)) // 16      (tokens per slot)
    rest  = E[length] of this turn + E[turns to come] * E[length of a turn]
    A     = work that arrived before it / slots; the work of a turn is its E[length], from 1 token to `most`
    weight = 4; most = 8,192 tokens. In one round, the inner policy decides.

    Turns to come after the k-th: (sessions seen with a turn j, over all j > k) / (sessions seen with a turn k), of the
    tenant's sessions of this template; a template begins with 4 sessions of its tenant's, a tenant with 1 turn to come.
    Lengths of turns likewise. A template without a name is the first block of the prompt, the system prompt. A session
    without a name is the one whose last prompt this prompt continues. Both count within their tenant only. A request
    without prediction has the wide prior's length; one alone is a session of one turn so far.

    Claim. A request is overtaken only by requests that arrive before weight * most + 16 tokens of further work per slot
    have arrived, whatever its session and whatever sessions claim.
    Proof. Its round begins at most weight * most above its A, and the round of a later request at or above A of that.
    QED. With n slots these are (weight * most + 16) * n tokens of work: no turn of a session waits for more than what
    is before it under first come, first served, and that. Priority is outside, as with `bounded`.

    Nothing is learned where all sessions are alike in turns: the order is then by E[length] of the turn, aged.
    """

    kind = "sessions"

    weight: float = parameter(4.0, minimum=0.0, maximum=64.0)
    most: float = parameter(8192.0, minimum=1.0, maximum=131_072.0)

    @property
    def uses_predictions(self) -> bool:
        """Return True: the rest of a session is in predicted tokens."""
        return True

    def make_rounds(self) -> Rounds:
        """Return what is known of sessions, for one slot."""
        return _ByRest(self.weight, self.most, one_slot)

    def rounds(self, slots: Slots = one_slot) -> Rounds:
        """Return what is known of sessions, with the rounds of the inner policy nested in its own."""
        own, inner = _ByRest(self.weight, self.most, slots), self.inner.rounds(slots)
        return own if inner is None else NestedRounds(own, inner)
