"""The memory that the compiled engine works on: records in arrays, and the codes it returns to its host.

Plain NumPy: importing this does not load Numba.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies.admission import PREDICTED_LENGTHS
from lengthwise.policies.arrival_order import Preble
from lengthwise.policies.calibration import LengthCalibration
from lengthwise.policies.lengthwise import Lengthwise
from lengthwise.policies.queue import TokenRate
from lengthwise.policies.slo import LatencyTarget
from lengthwise.simulator.costs import COST
from lengthwise.simulator.outcome import SAMPLE
from lengthwise.simulator.traffic import REQUEST

Record = Any
"""One record of an array, by reference: writing to it writes to the array."""

# Why `advance` returns. From ASK_LEVEL on these are questions, which the host answers before it calls again.
GO_ON: Final = 0  # never returned: continue
DONE: Final = 1  # nothing begins before the given time
PAUSED: Final = 2  # the requested number of requests is settled
ASK_LEVEL: Final = 3  # which column of keys is valid, given the numbers of waiting and running requests
ASK_KEYS: Final = 4  # keys of all waiting requests, which go stale with time
ASK_KEY: Final = 5  # the key of a preempted request
ASK_VICTIM: Final = 6  # which running request to evict, memory being short
ASK_HEAD_VICTIM: Final = 7  # which running request, if any, to preempt for the head of the queue
ASK_ARRIVAL: Final = 8  # round of a request that has arrived, and its key where it depends on cached tokens
GROW: Final = 9  # an array is full
ASK_PREDICTION: Final = 10  # round of a waiting request whose prediction has arrived
ASK_SELECTION: Final = 11  # which waiting request the policy selects
FULL: Final = 12  # there are more events than the host has memory for
NO_ANSWER: Final = -2
NONE: Final = -1
INDEFINITELY: Final = 1 << 60  # steps
STALE: Final = -1  # in place of a column of keys: rebuild the heap before the next decision

# Phases of a step.
BETWEEN_STEPS: Final = 0
PREEMPTING: Final = 1
SCHEDULING: Final = 2
ADMITTING: Final = 3
COMPUTING: Final = 4

# When keys go stale: Policy.rekey.
NEVER: Final = 0
ON_LEVEL: Final = 1
ON_PROGRESS: Final = 2
ON_TIME: Final = 3
SELECTED: Final = 4  # the policy selects from the whole queue at every decision

# Policies whose decisions are compiled; the host asks all others.
OTHER: Final = 0
LENGTHWISE: Final = 1
PREBLE: Final = 2
SLO: Final = 3
HRRN: Final = 4
BOOST: Final = 5
SRPT: Final = 6
GITTINS: Final = 7
ONTIME: Final = 8

# What the prefix cache finds again after a request frees its memory.
NOTHING: Final = 0
OWN_ONLY: Final = 1  # its own blocks, after a preemption
BY_BLOCK: Final = 2  # any block, by requests with the same prefix

# What must fit when a request is admitted.
WHOLE_PROMPT: Final = 0  # vLLM: the whole prompt, now
FUTURE_PEAK: Final = 1  # LightLLM: the predicted peak of all requests (policies.admission)
RESERVATION: Final = 2  # S3: a reservation for the prompt and predicted answer of each

PROGRESS: Final = np.dtype(
    [
        ("round", "i8"),  # of a policy with rounds
        ("counted", "f8"),  # under `lengthwise`: its work
        ("credited", "f8"),  # the credit it added
        ("price", "f8"),  # the credit it used
        ("heap_index", "i4"),  # in the heap of waiting requests, else -1
        ("max_computed", "i4"),  # most tokens in memory at a preemption
        ("cached", "i4"),  # tokens in the prefix cache when it last joined the queue (if reported) or was admitted
        ("granted_tokens", "i4"),  # answer tokens that RESERVATION grants, 0 before
        ("retained", "i4"),  # under OWN_ONLY, its blocks in the cache
        ("retained_before", "i4"),  # rows, in the order in which memory was freed
        ("retained_after", "i4"),
        ("predicted", "i4"),  # whether its late prediction has arrived
    ]
)
"""What the engine notes of a request beside `traffic.REQUEST`, from the moment the request is sent to it."""

WAITING: Final = np.dtype([("key", "f8"), ("round", "i8"), ("priority", "i4"), ("order", "i4"), ("row", "i8")])
"""An entry of the heap: smallest first by priority, round, key, order (of joining; negative for preempted ones)."""

RUNNING: Final = np.dtype(
    [
        ("row", "i4"),
        ("computed", "i4"),  # tokens in KV memory
        ("tokens", "i4"),  # prompt and answer so far
        ("left", "i4"),  # answer tokens to come
        ("blocks", "i4"),  # allocated
        ("scheduled", "i4"),  # tokens in the current step
        ("hashed", "i4"),  # leading blocks that are in the prefix cache
        ("table", "i4"),  # row of `tables` that lists its blocks
    ]
)
"""A running request; the array is in order of admission."""

BLOCK: Final = np.dtype(
    [
        ("identity", "i8"),
        ("users", "i4"),
        ("named", "i4"),  # 1 if it is full and in the index under its identity
        ("before", "i4"),  # in the queue of free blocks
        ("after", "i4"),
        ("twin_before", "i4"),  # among blocks of the same identity, in a circle, oldest first
        ("twin_after", "i4"),
    ]
)
"""A block of KV memory, where prefixes are cached. One extra block is head and tail of the free queue."""

INDEX: Final = np.dtype([("identity", "i8"), ("oldest", "i8")])
"""An entry of the hash table over identities: the oldest block of one, plus one; 0 where the entry is empty."""

DEMAND: Final = np.dtype([("remaining", "i8"), ("tokens", "i8")])
"""A `policies.admission.KvDemand`, to find the predicted peak."""

LEVEL: Final = np.dtype([("pair", "i8"), ("column", "i8")])
"""A remembered answer to ASK_LEVEL."""


def state_record(state: Any) -> NDArray[np.void]:
    """Return a state of a policy as an array of one record: its fields that are numbers, or several numbers."""
    values = {name: np.asarray(getattr(state, name)) for name in (field.name for field in fields(state))}
    known = {name: value for name, value in values.items() if value.dtype != object}
    kinds = [(name, "f8" if value.dtype.kind == "f" else "i8", value.shape) for name, value in known.items()]
    record = np.zeros(1, kinds)
    for name, value in known.items():
        record[name] = value
    return record


LANES: Final = state_record(Lengthwise().rounds()).dtype
GROUPS: Final = state_record(Preble().rounds()).dtype
TARGET: Final = state_record(LatencyTarget()).dtype
CALIBRATION: Final = state_record(LengthCalibration()).dtype
RATE: Final = state_record(TokenRate()).dtype

BY_DEADLINE: Final = np.dtype(
    [
        ("due", "f8"),
        ("median", "f8"),
        ("cap", "f8"),
        ("bin", "i4"),
        ("row", "i4"),
        ("order", "i4"),
        ("priority", "i4"),
    ],
    align=True,
)
"""A waiting request under `slo` or `ontime`, by priority, due time, then order of joining.

Due: under `slo` the arrival, since all have the same target; under `ontime` when the first token is.
"""

LIMITS: Final = np.dtype([("due", "f8"), ("per_token", "f8"), ("deadline", "f8")])
"""The limits of a request under `ontime`: times of first and last token, seconds per token; infinite: none."""

JOB: Final = np.dtype(
    [
        ("expected", "f8"),
        ("initial_expected", "f8"),
        ("mu", "f8"),
        ("median", "f8"),  # without the cap
        ("cap", "f8"),
        ("sigma_index", "i8"),  # see lengths.log_t; -1 for a certain length
        ("fresh", "f8"),  # rank before the first token
        ("cap_integral", "f8"),  # of the survival up to the cap, in medians; NaN until computed
    ]
)
"""What `hrrn`, `srpt` and `gittins` need of a request's prediction."""

PREDICTED: Final = np.dtype([("lengths", "i4", (PREDICTED_LENGTHS,))])
"""The predicted lengths of a request for admission: see `policies.admission.predicted_lengths`."""

EVENT: Final = np.dtype(
    [("engine", "i8"), ("row", "i8"), ("finished", "?"), ("at_s", "f8"), ("generated", "i8"), ("ttft_s", "f8")]
)
"""An `engine.EngineEvent`."""

INT: Final = np.dtype([("value", "i4")])
LONG: Final = np.dtype([("value", "i8")])
HASH: Final = np.dtype([("value", "u8")])
REAL: Final = np.dtype([("value", "f8")])
"""Plain numbers, as records with one field."""

ARRAYS: Final = {
    # shared by all engines
    "requests": REQUEST,
    "progress": PROGRESS,
    "keys": REAL,  # [column, stage of prediction, request]
    "predicted_length": PREDICTED,
    "hash_offsets": LONG,
    "hashes": HASH,
    "medians": REAL,  # [stage of prediction, request], under `lengthwise`, `slo` and `ontime`, as the next two
    "caps": REAL,
    "bins": INT,  # of `policies.calibration`
    "arrivals": REAL,  # [request]: at the router, which passes requests on later
    "limits": LIMITS,  # [request], of `ontime`
    "jobs": JOB,  # [stage of prediction, request], under `hrrn`, `srpt` and `gittins`
    "rank_tables": REAL,  # see `ranks`
    # of one engine
    "rows": INT,  # requests sent here, in order of arrival
    "waiting": WAITING,
    "running": RUNNING,
    "levels": LEVEL,
    "events": INT,  # a row: admitted; -1 - row: finished
    "samples": SAMPLE,
    "blocks": BLOCK,
    "index": INDEX,
    "tables": INT,  # [table, position]: the blocks of running requests
    "free_tables": INT,
    "lanes": LANES,
    "groups": GROUPS,
    "target": TARGET,
    "calibration": CALIBRATION,
    "by_deadline": BY_DEADLINE,
    "demands": DEMAND,
    "growth": INT,  # [step, modulo the block size]: running requests that take a block
}
"""The arrays that an engine works on, and their dtypes."""

SHARED: Final = ("requests", "predicted_length", "hash_offsets", "hashes")
"""Arrays of the traffic, which all engines share."""

SIZED: Final = ("waiting", "levels", "events", "samples", "index", "requests")
"""Arrays whose length the engine needs."""

ENGINE: Final = np.dtype(
    [
        # limits, under vLLM's names
        ("max_model_len", "i8"),
        ("max_num_seqs", "i8"),
        ("max_num_batched_tokens", "i8"),
        ("block_size", "i8"),
        ("n_blocks", "i8"),
        ("cost", COST),
        # options
        ("rekey", "i8"),
        ("preempts", "i8"),
        ("preempt_check_interval", "i8"),
        ("asks_on_arrival", "i8"),
        ("reports_cached", "i8"),  # whether the policy uses how much of a waiting request is cached
        ("policy", "i8"),  # the compiled one, or OTHER
        ("policy_parameters", "f8", (3,)),  # of it
        ("evicts_last", "i8"),  # whether the last admitted is preempted when memory is short
        ("cache_mode", "i8"),
        ("blocks_per_hash", "i8"),  # engine blocks in a hashed block, 0 where several of those make one
        ("hashes_per_block", "i8"),
        ("admission", "i8"),
        ("chunked_prefill", "i8"),  # whether a prompt may be computed in several steps
        ("prediction_delay", "f8"),
        ("decision_s", "f8"),
        # the clock, and where in a step it stands
        ("now", "f8"),
        ("phase", "i8"),
        ("cursor", "i8"),  # running request that is scheduled next
        ("budget", "i8"),
        ("decisions", "i8"),
        ("preempted", "i8"),  # requests preempted in this step
        ("answer", "i8"),  # of the host
        ("asked_row", "i8"),  # row that a question is about
        ("pending", "i8"),  # preempted row that joins the queue once its key is known, -1 if none
        ("want", "i8"),  # tokens to schedule for the request at the cursor, 0 until decided
        # counts
        ("n_rows", "i8"),
        ("arrived", "i8"),
        ("n_predicted", "i8"),
        ("n_waiting", "i8"),
        ("n_running", "i8"),
        ("free", "i8"),  # blocks
        ("reserved", "i8"),  # blocks, under RESERVATION
        ("n_retained", "i8"),  # free blocks that are in the cache, under OWN_ONLY
        ("retained_first", "i8"),  # rows
        ("retained_last", "i8"),
        ("shared_tokens", "i8"),  # context tokens in blocks that several requests use
        ("last_order", "i8"),
        ("column", "i8"),  # of keys that order the heap
        ("keyed_at", "f8"),
        ("selected", "i8"),  # row that is first because the policy selected it, -1 if none
        ("generated", "i8"),  # tokens, of all requests
        ("rate", RATE),
        ("settled", "i8"),
        ("refused", "i8"),
        ("pause_at", "i8"),
        # results of checks that hold until something changes
        ("decoding", "i8"),  # every running request computes one token a step
        ("blocked_steps", "i8"),  # decode steps without memory for the head, unless a request joins or leaves
        ("no_victim_for", "i8"),  # row of the head for which there is no victim, -1 if unknown
        ("steps_since_check", "i8"),  # steps since that answer
        # the outcome
        ("n_events", "i8"),
        ("n_reported", "i8"),  # of them, to the host
        ("n_samples", "i8"),
        ("sample_at", "f8"),
        ("sample_every", "f8"),
        ("peak_blocks", "i8"),
        ("block_seconds", "f8"),
        ("busy_s", "f8"),
        ("steps", "i8"),
        # addresses and lengths of the arrays; see `access`
        *((name, "i8") for name in ARRAYS),
        *((f"{name}_size", "i8") for name in SIZED),
        ("stages", "i8"),  # of prediction: one, or two where predictions are late
        ("positions", "i8"),  # of a table
    ]
)
"""One engine: its limits, its clock and its counts."""
