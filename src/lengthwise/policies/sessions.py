"""`sessions(POLICY)`: the requests of agents by the predicted rest of their session, in place of one by one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies.base import parameter
from lengthwise.policies.calibration import LengthCalibration, calibrated_work, length_bin, record_length
from lengthwise.policies.job import Job
from lengthwise.policies.protocol import Rounds, Slots, one_slot
from lengthwise.policies.wrappers import NestedRounds, RoundsWrapper

TOKENS_PER_ROUND: Final = 16.0  # per slot, as under `lengthwise`
MAX_WORK: Final = 8192.0  # of one turn, in tokens
MAX_TURNS: Final = 128  # of a session that are counted apart
MAX_SESSIONS: Final = 4096  # of one tenant, the last used; likewise jobs whose rest is remembered
MAX_TEMPLATES: Final = 128  # of one tenant
MAX_TENANTS: Final = 1024
MAX_SEARCHED: Final = 1024  # of a prompt's last blocks, for the turn that it continues
_PRIOR_TURNS: Final = 4.0  # with which a count begins: a template's as its tenant's, that of a number as of all numbers
_FADE_AT: Final = 4096.0  # turns: then all counts of a template are halved
_FIRST_FOLLOWED, _FIRST_LENGTH = 0.5, 256.0  # share of turns that another follows, and tokens, where nothing was seen

_V = TypeVar("_V")


@dataclass(slots=True)
class _Turns:
    """What turns of one template, or of one tenant, have been like.

    A turn that waits or runs counts neither as followed nor as the last: in an overload those are many, of long
    sessions most.
    """

    ended: NDArray[np.float64] = field(default_factory=lambda: np.zeros(MAX_TURNS + 1))
    """Turns of each number, from 1, that have ended."""
    followed: NDArray[np.float64] = field(default_factory=lambda: np.zeros(MAX_TURNS + 1))
    """Of these, how many another turn has followed."""
    all_ended: float = 0.0
    all_followed: float = 0.0
    tokens: float = 0.0
    lengths: LengthCalibration = field(default_factory=LengthCalibration)
    """What predicted lengths of turns are worth."""

    def follow(self, turn: int) -> None:
        """Count a turn that has arrived."""
        if turn > 1:
            self.followed[turn - 1] += 1.0
            self.all_followed += 1.0

    def finish(self, turn: int, tokens: float) -> None:
        """Count a turn that has ended."""
        self.ended[turn] += 1.0
        self.all_ended, self.tokens = self.all_ended + 1.0, self.tokens + tokens
        if self.all_ended > _FADE_AT:
            self.ended *= 0.5
            self.followed *= 0.5
            self.all_ended, self.all_followed, self.tokens = (
                0.5 * each for each in (self.all_ended, self.all_followed, self.tokens)
            )

    def share_followed(self, prior: float) -> float:
        """Return the share of turns that another follows."""
        return min(1.0, (self.all_followed + _PRIOR_TURNS * prior) / (self.all_ended + _PRIOR_TURNS))

    def further(self, turn: int, share: float) -> float:
        """Return the expected number of turns after this one; `share` of turns that another follows, of any number."""
        counted = self.ended[turn:] + _PRIOR_TURNS
        shares = np.minimum(1.0, (self.followed[turn:] + _PRIOR_TURNS * share) / counted)
        return float(np.cumprod(shares).sum())

    def length(self, prior: float) -> float:
        """Return the mean tokens of a turn."""
        return (self.tokens + _PRIOR_TURNS * prior) / (self.all_ended + _PRIOR_TURNS)


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


class _Entered(NamedTuple):
    """What is remembered of a job until it ends; `template` and `tenant`: where it counts."""

    turn: int
    before: float
    """The work that had arrived."""
    to_come: float
    """Tokens of the turns after it."""
    template: _Turns
    tenant: _Turns


@dataclass(slots=True)
class _ByRest:
    """Rounds by place: the work that had arrived before a job, and the weighted rest of its session."""

    weight: float
    most: float
    slots: Slots
    arrived: float = 0.0
    """Tokens of work per slot."""
    tenants: OrderedDict[str, _Tenant] = field(default_factory=OrderedDict)
    entered: OrderedDict[str, _Entered] = field(default_factory=OrderedDict)
    """By job."""

    def enter(self, job: Job) -> int:
        tenant = _recent(self.tenants, job.tenant or "", _Tenant, MAX_TENANTS)
        session, template = tenant.session(job), tenant.template(job)
        session.turns = turn = min(session.turns + 1, MAX_TURNS)
        for record in (template, tenant.all):
            record.follow(turn)
        further = template.further(turn, template.share_followed(tenant.all.share_followed(_FIRST_FOLLOWED)))
        to_come = further * template.length(tenant.all.length(_FIRST_LENGTH))
        known = self.entered[job.id] = _Entered(turn, self.arrived, to_come, template, tenant.all)
        if len(self.entered) > MAX_SESSIONS * 16:
            self.entered.popitem(last=False)
        place = self._round(job, known)
        self.arrived += max(1.0, min(job.expected, MAX_WORK)) / max(1, self.slots())
        return place

    def _round(self, job: Job, known: _Entered) -> int:
        place = length_bin(job.mu, job.sigma, job.median)
        rest = calibrated_work(known.template.lengths, job.median, place, job.cap) + known.to_come
        return int((known.before + self.weight * rest * self.most / (rest + self.most)) // TOKENS_PER_ROUND)

    def prediction_changed(self, job: Job, round_number: int, old_median: float) -> int:
        known = self.entered.get(job.id)
        return round_number if known is None else self._round(job, known)

    def admitted(self, round_number: int) -> None:
        """Do nothing: rounds do not depend on what is served."""

    def finished(self, job: Job) -> None:
        known = self.entered.pop(job.id, None)
        if known is not None:
            tokens = job.generated if job.used_tokens is None else job.expected
            for record in (known.template, known.tenant):
                record.finish(known.turn, tokens)
            if job.used_tokens is None and job.generated > 0:
                place = length_bin(job.mu, job.sigma, job.median)
                record_length(known.template.lengths, job.median, place, job.generated)


@dataclass(frozen=True)
class Sessions(RoundsWrapper):
    """The least predicted rest of the session first, aged: `sessions(fcfs)`, for agents that wait for their session.

    round = (A + weight * rest * most / (rest + most)) // 16      (tokens per slot)
    rest  = length of this turn + E[turns to come] * E[length of a turn]
    A     = work that arrived before it / slots; the work of a turn is its E[length], from 1 to 8,192 tokens
    weight = 32; most = 2,048 tokens: a short rest adds about weight * rest, a long one less than weight * most. In one
    round, the inner policy decides.

    The length of this turn is the predicted one, calibrated as under `lengthwise` by the turns of the template: where
    predictions say little about them, it is near their mean.

    Turns to come after the k-th: the sum over n >= 1 of c_k * c_(k+1) * ... * c_(k+n-1). c_j is the share of the j-th
    turns of the tenant's sessions of this template which another turn followed, of those that have ended (the estimate
    of Kaplan and Meier: a turn that waits or runs says nothing yet). Each c_j begins with 4 turns like those of all
    numbers of the template, these with 4 like the tenant's, and these with 4 of which another follows half. Lengths of
    turns likewise, with 256 tokens. A template without a name is the first block of the prompt, the system prompt. A
    session without a name is the one whose last prompt this prompt continues. Both count within their tenant only. A
    request without prediction has the wide prior's length; one alone is a session of one turn so far.

    Claim. A request is overtaken only by requests that arrive before weight * most + 16 tokens of further work per slot
    have arrived, whatever its session and whatever sessions claim.
    Proof. Its round begins less than weight * most above its A, and the round of a later request at or above A of that.
    QED. With n slots these are (weight * most + 16) * n tokens of work: no turn of a session waits for more than what
    is before it under first come, first served, and that. Priority is outside, as with `bounded`.

    Nothing is learned where all sessions are alike in turns: the order is then by E[length] of the turn, aged.
    """

    kind = "sessions"

    weight: float = parameter(32.0, minimum=0.0, maximum=64.0)
    most: float = parameter(2048.0, minimum=1.0, maximum=131_072.0)

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
