"""KV memory: blocks allocated and freed.

Blocks are only counted where nothing is cached. `prefixes` tracks single blocks where requests share prefixes. Without
shared prefixes only a preempted request can find its blocks again, so a count per request is enough: empty blocks are
taken first, then the cached blocks of requests, least recently freed first, each from its last block.
"""

from __future__ import annotations

from lengthwise.compiled import inlined as compiled
from lengthwise.compiled import inlined_copies
from lengthwise.policies import admission
from lengthwise.simulator.kernel import prefixes
from lengthwise.simulator.kernel.access import progress_at, request_at, running_at
from lengthwise.simulator.kernel.records import BY_BLOCK, NONE, OWN_ONLY, Record

(blocks_for,) = inlined_copies(admission.blocks_for)


@compiled
def cached_blocks(engine: Record, row: int, tokens: int) -> tuple[int, int]:
    """Leading blocks of a request that are in the cache, and how many of them are free.

    The last token is never taken from the cache: computing it generates the next one.
    """
    most = (tokens - 1) // engine.block_size
    if engine.cache_mode == BY_BLOCK:
        return prefixes.leading(engine, row, most)
    if engine.cache_mode == OWN_ONLY:
        found = min(int(progress_at(engine, row).retained), most)
        return found, found
    return 0, 0


@compiled
def ready(engine: Record, row: int, cached: int) -> int:
    """Tokens of a request that need not be computed, with `cached` leading blocks in the cache.

    Those, or all whose KV was transferred, unless leading blocks that were not sent have been evicted since.
    """
    request, here = request_at(engine, row), cached * engine.block_size
    return max(here, int(request.transferred_kv_tokens)) if here >= request.missing_kv_tokens else here


@compiled
def set_cached(engine: Record, row: int) -> None:
    """Record how much of a waiting request is cached, where the policy uses it."""
    request, found = request_at(engine, row), 0
    if engine.reports_cached:
        found, _ = cached_blocks(engine, row, request.prompt + request.generated)
    progress_at(engine, row).cached = found * engine.block_size


@compiled
def _retain(engine: Record, row: int, blocks: int) -> None:
    """Leave the full blocks of a request in the cache when it frees them."""
    if blocks == 0:
        return
    progress = progress_at(engine, row)
    progress.retained, progress.retained_before, progress.retained_after = blocks, engine.retained_last, NONE
    if engine.retained_last == NONE:
        engine.retained_first = row
    else:
        progress_at(engine, engine.retained_last).retained_after = row
    engine.retained_last = row
    engine.n_retained += blocks


@compiled
def _evict_retained(engine: Record, row: int, blocks: int) -> None:
    """Evict `blocks` cached blocks of a request."""
    progress = progress_at(engine, row)
    progress.retained -= blocks
    engine.n_retained -= blocks
    if progress.retained:
        return
    if progress.retained_before == NONE:
        engine.retained_first = progress.retained_after
    else:
        progress_at(engine, progress.retained_before).retained_after = progress.retained_after
    if progress.retained_after == NONE:
        engine.retained_last = progress.retained_before
    else:
        progress_at(engine, progress.retained_after).retained_before = progress.retained_before


@compiled
def _take(engine: Record, blocks: int) -> None:
    """Evict cached blocks so that `blocks` free ones are empty."""
    lacking = blocks - (engine.free - engine.n_retained)
    while lacking > 0:
        row = engine.retained_first
        evicted = min(lacking, progress_at(engine, row).retained)
        _evict_retained(engine, row, evicted)
        lacking -= evicted


@compiled
def adopt(engine: Record, position: int, blocks: int) -> None:
    """Give a request that starts the leading blocks that are in the cache."""
    running = running_at(engine, position)
    if engine.cache_mode == BY_BLOCK:
        prefixes.adopt(engine, position, blocks)
    elif blocks:
        _evict_retained(engine, running.row, blocks)
        engine.free -= blocks
    running.blocks = running.hashed = blocks
    running.computed = blocks * engine.block_size


@compiled
def grow(engine: Record, position: int, tokens: int) -> bool:
    """Take blocks so that a running request can hold `tokens`; False where too few are free."""
    running = running_at(engine, position)
    more = blocks_for(tokens, engine.block_size) - running.blocks
    if more > engine.free:
        return False
    if more > 0:
        if engine.cache_mode == BY_BLOCK:
            prefixes.take(engine, position, more)
        else:
            _take(engine, more)
            engine.free -= more
        running.blocks += more
        engine.peak_blocks = max(engine.peak_blocks, engine.n_blocks - engine.free)
    if engine.cache_mode:
        # Others may use full blocks from now on, though they are computed at the end of this step: as in vLLM.
        full = tokens // engine.block_size
        if engine.cache_mode == BY_BLOCK:
            prefixes.name(engine, position, full)
        running.hashed = max(running.hashed, full)
    return True


@compiled
def give_back(engine: Record, position: int) -> None:
    """Free the blocks of a running request."""
    running = running_at(engine, position)
    computed = running.computed // engine.block_size
    if engine.cache_mode == BY_BLOCK:
        prefixes.give_back(engine, position, computed)
    else:
        engine.free += running.blocks
        _retain(engine, running.row, min(running.hashed, computed))
    running.blocks = running.hashed = running.computed = 0
