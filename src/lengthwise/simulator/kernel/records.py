"""The memory that the compiled engine works on: records in arrays, and the codes by which it speaks to its host.

Plain NumPy, so that whoever only looks at a simulation need not load the compiler.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

Records = np.recarray[Any, Any]
"""A structured array; what is in a record is said by its dtype below."""

Record = Any
"""One record of it, by reference: what is written to it is written to the array."""

# Why `advance` returns. From ASK_LEVEL on these are questions, which the host answers before it calls again.
GO_ON: Final = 0  # never returned: nothing is in the way
DONE: Final = 1  # nothing begins before the given time
PAUSED: Final = 2  # as many requests as asked for are settled
ASK_LEVEL: Final = 3  # which column of keys holds, for so many waiting and running
ASK_KEYS: Final = 4  # keys of all running wait: they go stale with time
ASK_KEY: Final = 5  # the key of one that comes back after a preemption
ASK_VICTIM: Final = 6  # running yields, memory being short
ASK_HEAD_VICTIM: Final = 7  # running, if anybody, yields to the first in line
ASK_ARRIVAL: Final = 8  # the round of one that has just come, and its key where that depends on what is cached
GROW: Final = 9  # an array is full
ASK_PREDICTION: Final = 10  # the round of one running waits and whose prediction has come
NO_ANSWER: Final = -2
NONE: Final = -1
INDEFINITELY: Final = 1 << 60  # steps
STALE: Final = -1  # instead of a column of keys: order everybody anew before the next decision

# Where in a step an engine stands.
BETWEEN_STEPS: Final = 0
PREEMPTING: Final = 1
SCHEDULING: Final = 2
ADMITTING: Final = 3
COMPUTING: Final = 4

# When keys go stale, as the policies say it.
NEVER: Final = 0
ON_LEVEL: Final = 1
ON_PROGRESS: Final = 2
ON_TIME: Final = 3

# What of a request can be found again once its memory is given back.
NOTHING: Final = 0
OWN_ONLY: Final = 1  # by itself, after a preemption
BY_BLOCK: Final = 2  # by whoever begins alike

# What must fit when a request is admitted.
WHOLE_PROMPT: Final = 0  # vLLM: all of its prompt, now
FUTURE_PEAK: Final = 1  # LightLLM: the highest point that the memory of all will reach, as far as is predicted
RESERVATION: Final = 2  # S3: prompt and predicted answer of each, set apart for it

REQUEST: Final = np.dtype(
    [
        ("arrival", "f8"),
        ("started", "f8"),  # NaN until then, as the next two
        ("first_token", "f8"),
        ("finish", "f8"),
        ("prompt", "i4"),  # tokens, as the next two
        ("output", "i4"),  # the true length; only the engine knows it
        ("generated", "i4"),  # true while it waits; while it runs, RUNNING has it
        ("preemptions", "i4"),
        ("max_computed", "i4"),  # the most tokens it ever had in memory when it was preempted
        ("recomputed", "i4"),  # tokens that it computed more than once, each as often as again
        ("priority", "i4"),
        ("round", "i8"),  # of a policy that serves in last_order
        ("heap_index", "i4"),  # in the heap of the waiting, -1 elsewhere
        ("cached", "i4"),  # tokens in the prefix cache when it last came to wait (if asked for) or to run
        ("initial_cached", "i4"),  # the same when it first came to run
        ("granted_tokens", "i4"),  # tokens of answer that RESERVATION grants, 0 until asked
        ("transferred_kv_tokens", "i4"),  # tokens whose KV comes with it, computed elsewhere; 0 once it has begun
        ("missing_kv_tokens", "i4"),  # of those, leading ones that were not sent: the engine had them in its cache
        ("retained", "i4"),  # under OWN_ONLY, blocks that it could find again
        ("retained_before", "i4"),  # rows, in the order in which memory was given back
        ("retained_after", "i4"),
    ]
)
"""One request of the workload, the same for all engines."""

WAITING: Final = np.dtype([("key", "f8"), ("round", "i8"), ("priority", "i4"), ("order", "i4"), ("row", "i8")])
"""An entry of the heap: smallest first by priority, round, key, turn (order of coming, below 0 for running comes back)."""

RUNNING: Final = np.dtype(
    [
        ("row", "i4"),
        ("computed", "i4"),  # tokens in KV memory
        ("tokens", "i4"),  # prompt and answer so far
        ("left", "i4"),  # tokens of answer still to come
        ("blocks", "i4"),  # held
        ("scheduled", "i4"),  # tokens in the present step
        ("hashed", "i4"),  # leading blocks that are in the prefix cache
        ("table", "i4"),  # where its blocks are listed
    ]
)
"""One running runs; in order of admission."""

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
"""A block of KV memory, where prefixes are cached. One more than there are is head and tail of the free queue."""

INDEX: Final = np.dtype([("identity", "i8"), ("oldest", "i8")])
"""A slot of the hash table over identities: the oldest block of one, plus one; 0 where the slot is empty."""

SCRATCH: Final = np.dtype([("left", "i8"), ("held", "i8")])
"""Tokens to come and tokens held, of one running runs or would."""

SAMPLES: Final = 1024  # at most, of one engine
SAMPLE_EVERY_S: Final = 0.25  # at first

SAMPLE: Final = np.dtype([("time", "f8"), ("waiting", "i4"), ("running", "i4"), ("blocks", "i4")])
"""How full an engine was at one moment."""

LEVEL: Final = np.dtype([("pair", "i8"), ("column", "i8")])
"""A remembered answer to ASK_LEVEL."""

INT: Final = np.dtype([("value", "i4")])
LONG: Final = np.dtype([("value", "i8")])
HASH: Final = np.dtype([("value", "u8")])
REAL: Final = np.dtype([("value", "f8")])
"""Plain numbers, as records of one."""

COST: Final = np.dtype(
    [
        ("family", "i8"),
        # LINEAR, seconds; see StepCost
        ("prefill_base", "f8"),
        ("decode_base", "f8"),
        ("prefill_token", "f8"),
        ("prefill_pair", "f8"),
        ("decode", "f8"),
        ("kv_token", "f8"),
        # ROOFLINE, seconds, beside prefill_pair and kv_token; see Roofline
        ("overhead", "f8"),
        ("token", "f8"),
        ("weights", "f8"),
        # PIECEWISE, milliseconds; see Piecewise
        ("n_lines", "i8"),
        ("lines", "f8", (4, 4)),  # each: from so many tokens of a batch on, constant, slope, square
        ("attention_from", "f8"),
        ("attention_below", "f8"),
        ("attention_constant", "f8"),
        ("attention_slope", "f8"),
        ("halved_context", "f8"),
        ("halved_product", "f8"),
        ("long_from", "f8"),
        ("long_terms", "f8", (4,)),  # constant, new tokens, context, both
        ("divisor", "f8"),
    ]
)
"""The parameters of a cost model: those of its family count."""

ARRAYS: Final = {
    # of all engines
    "requests": REQUEST,
    "keys": REAL,  # [column, stage of prediction, request]
    "predicted_length": INT,  # [request, rung]: rising lengths, for admission by what is predicted
    "hash_offsets": LONG,
    "hashes": HASH,
    # its own
    "rows": INT,  # requests sent here, in order of arrival
    "waiting": WAITING,
    "running": RUNNING,
    "levels": LEVEL,
    "events": INT,  # a row: admitted; -1 - row: finished
    "samples": SAMPLE,
    "blocks": BLOCK,
    "index": INDEX,
    "tables": INT,  # [table, position]: the blocks of running runs
    "free_tables": INT,
    "scratch": SCRATCH,
}
"""The arrays that an engine works on, and what they are made of."""

SIZED: Final = ("waiting", "levels", "events", "samples", "index", "requests")
"""Those whose length an engine must know."""

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
        ("reports_cached", "i8"),  # whether a policy is told what is cached of those running wait
        ("cache_mode", "i8"),
        (
            "blocks_per_hash",
            "i8",
        ),  # engine blocks in a block of the workload's hashes, 0 where several of those make one
        ("hashes_per_block", "i8"),
        ("admission", "i8"),
        ("jumps", "i8"),
        ("chunked_prefill", "i8"),  # whether a prompt may be computed in several steps
        ("prediction_delay", "f8"),
        ("decision_s", "f8"),
        # the clock, and where in a step it stands
        ("now", "f8"),
        ("phase", "i8"),
        ("cursor", "i8"),  # running is next to get its tokens
        ("budget", "i8"),
        ("decisions", "i8"),
        ("preempted", "i8"),  # how many lost their memory in this step
        ("answer", "i8"),  # the host's
        ("asked_row", "i8"),  # the row a question is about
        ("pending", "i8"),  # a row that waits again once its key is known, -1 if none
        ("want", "i8"),  # tokens that the one at the cursor is to get, 0 until decided
        # running is where
        ("n_rows", "i8"),
        ("arrived", "i8"),
        ("n_predicted", "i8"),
        ("n_waiting", "i8"),
        ("n_running", "i8"),
        ("free", "i8"),  # blocks
        ("reserved", "i8"),  # blocks, under RESERVATION
        ("n_retained", "i8"),  # of the free blocks, those that could be found again, under OWN_ONLY
        ("retained_first", "i8"),  # rows
        ("retained_last", "i8"),
        ("shared_tokens", "i8"),  # of contexts, held once and used by more than one
        ("last_order", "i8"),
        ("column", "i8"),  # of keys, that the heap is ordered by
        ("keyed_at", "f8"),
        ("settled", "i8"),
        ("refused", "i8"),
        ("pause_at", "i8"),
        # what need not be looked at again
        ("decoding", "i8"),  # everybody running computes one token a step
        (
            "blocked_steps",
            "i8",
        ),  # decode steps for which the first in line is sure to find no memory, unless somebody comes or goes
        ("no_victim_for", "i8"),  # the row for which nobody yields, -1 if somebody might
        ("steps_since_check", "i8"),  # steps since that was said
        # the record
        ("n_events", "i8"),
        ("n_samples", "i8"),
        ("sample_at", "f8"),
        ("sample_every", "f8"),
        ("peak_blocks", "i8"),
        ("block_seconds", "f8"),
        ("busy_s", "f8"),
        ("steps", "i8"),
        # where in memory it finds what, and how large that is; see `access`
        *((name, "i8") for name in ARRAYS),
        *((f"{name}_size", "i8") for name in SIZED),
        ("stages", "i8"),  # of prediction: one, or two where predictions come late
        ("n_levels", "i8"),
        ("positions", "i8"),  # of a table
    ]
)
"""One engine: its limits, its clock and its counts."""
