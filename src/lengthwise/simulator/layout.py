"""How the memory of one engine is laid out, before anybody is in it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.simulator.costs import CostModel
from lengthwise.simulator.kernel import records as r
from lengthwise.simulator.kernel.records import Record, Records
from lengthwise.simulator.spec import EngineSpec

if TYPE_CHECKING:
    from lengthwise.simulator.policy_keys import Desk
    from lengthwise.simulator.traffic import Traffic

_SAMPLES: Final = 1024
_SAMPLE_EVERY_S: Final = 0.25
_LEVELS: Final = 4096  # remembered answers: a power of two
_REKEY: Final = {"never": r.NEVER, "on_level": r.ON_LEVEL, "on_progress": r.ON_PROGRESS, "on_time": r.ON_TIME}
_ADMISSION: Final = {"prompt": r.WHOLE_PROMPT, "peak": r.FUTURE_PEAK, "reserve": r.RESERVATION}


@lru_cache(maxsize=64)
def _parameters(cost: CostModel) -> Record:
    return cost.parameters()


def engine_record(spec: EngineSpec, desk: Desk, traffic: Traffic) -> Records:
    """An engine's record with its limits and options, before it has any memory."""
    engine = np.zeros(1, r.ENGINE)
    record, policy = engine[0], desk.policy
    for limit in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"):
        record[limit] = getattr(spec, limit)
    record["n_blocks"] = record["free"] = spec.kv_blocks
    record["cost"] = _parameters(spec.cost)
    record["rekey"], record["preempts"] = _REKEY[policy.rekey], policy.preempts
    record["preempt_check_interval"] = policy.preempt_check_interval
    told = spec.prefix_caching and traffic.workload.has_blocks
    record["looks_up"] = told and (policy.rekey in ("on_progress", "on_time") or policy.rounds() is not None)
    record["asks_arrivals"] = policy.rounds() is not None or (told and policy.rekey == "on_progress")
    record["caches"] = _caches(spec, traffic)
    record["hash_parts"], record["hash_joins"] = _hash_units(spec, traffic)
    record["admission"] = _ADMISSION[spec.admission]
    record["chunks"] = spec.chunked_prefill
    record["prediction_delay"] = desk.jobs.delay_s
    record["answer"] = r.NO_ANSWER
    for row in ("asked", "pending", "room_asked", "kept_first", "kept_last"):
        record[row] = r.NOBODY
    record["keyed_at"] = -np.inf
    record["column"] = r.STALE if policy.rekey == "on_level" else 0
    record["sample_every"] = _SAMPLE_EVERY_S
    record["stages"] = len(desk.jobs.tables)
    return cast("Records", engine)


def own_arrays(spec: EngineSpec, traffic: Traffic, *, by_level: bool) -> dict[str, NDArray[Any]]:
    """The arrays of an engine with nobody in it, all of its memory free."""
    seqs = min(spec.max_num_seqs, len(traffic.requests))
    blocks, slots, tables = 0, 1, (1, 1)
    if _caches(spec, traffic) == r.BY_BLOCK:
        blocks = spec.kv_blocks
        slots = 1 << (2 * blocks).bit_length()
        tables = (seqs, -(-min(traffic.longest, spec.max_model_len) // spec.block_size))
    free = np.zeros(blocks + 1, r.BLOCK)
    free["before"], free["after"] = np.arange(-1, blocks), np.arange(1, blocks + 2)
    free["before"][0], free["after"][-1] = blocks, 0
    levels = np.zeros(_LEVELS if by_level else 1, r.LEVEL)
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
