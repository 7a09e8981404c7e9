"""KV memory: blocks taken and given back.

Blocks are only counted where nothing is cached; `own_block_cache` and `prefixes` say which of them can be found again.
"""

from __future__ import annotations

from lengthwise.compiled import inlined as compiled
from lengthwise.simulator.kernel import own_block_cache, prefixes
from lengthwise.simulator.kernel.access import request_at, running_at
from lengthwise.simulator.kernel.records import BY_BLOCK, OWN_ONLY, Record


@compiled
def needed(tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens."""
    return (tokens + block_size - 1) // block_size


@compiled
def cached_blocks(engine: Record, row: int, tokens: int) -> tuple[int, int]:
    """Leading blocks of a request that are in the cache, and how many of them count as free.

    At least its last token is to be computed, or nothing would come out.
    """
    most = (tokens - 1) // engine.block_size
    if engine.cache_mode == BY_BLOCK:
        return prefixes.leading(engine, row, most)
    if engine.cache_mode == OWN_ONLY:
        found = min(int(request_at(engine, row).retained), most)
        return found, found
    return 0, 0


@compiled
def ready(engine: Record, row: int, cached: int) -> int:
    """Tokens of a request that need not be computed, so many leading blocks of it being in the cache.

    Those, or all whose KV it transferred_kv_tokens; unless what was not sent, because it was here, has gone since.
    """
    request, here = request_at(engine, row), cached * engine.block_size
    return max(here, int(request.transferred_kv_tokens)) if here >= request.missing_kv_tokens else here


@compiled
def set_cached(engine: Record, row: int) -> None:
    """Note how much of a request is cached as it comes to wait, where a policy is told."""
    if engine.reports_cached:
        request = request_at(engine, row)
        found, _ = cached_blocks(engine, row, request.prompt + request.generated)
        request.cached = found * engine.block_size


@compiled
def adopt(engine: Record, position: int, blocks: int) -> None:
    """Give one running starts to run the leading blocks that are in the cache."""
    running = running_at(engine, position)
    if engine.cache_mode == BY_BLOCK:
        prefixes.adopt(engine, position, blocks)
    elif blocks:
        own_block_cache.forget(engine, running.row, blocks)
        engine.free -= blocks
    running.blocks = running.hashed = blocks
    running.computed = blocks * engine.block_size


@compiled
def grow(engine: Record, position: int, tokens: int) -> bool:
    """Hold blocks for so many tokens of one running runs; False where memory does not suffice."""
    running = running_at(engine, position)
    more = needed(tokens, engine.block_size) - running.blocks
    if more > engine.free:
        return False
    if more > 0:
        if engine.cache_mode == BY_BLOCK:
            prefixes.take(engine, position, more)
        else:
            own_block_cache.take(engine, more)
            engine.free -= more
        running.blocks += more
        engine.peak_blocks = max(engine.peak_blocks, engine.n_blocks - engine.free)
    if engine.cache_mode:
        # From now on others may use them, though they are computed only at the end of this step: as in vLLM.
        full = tokens // engine.block_size
        if engine.cache_mode == BY_BLOCK:
            prefixes.name(engine, position, full)
        running.hashed = max(running.hashed, full)
    return True


@compiled
def give_back(engine: Record, position: int) -> None:
    """Free the blocks of one running runs."""
    running = running_at(engine, position)
    computed = running.computed // engine.block_size
    if engine.cache_mode == BY_BLOCK:
        prefixes.give_back(engine, position, computed)
    else:
        engine.free += running.blocks
        own_block_cache.keep(engine, running.row, min(running.hashed, computed))
    running.blocks = running.hashed = running.computed = 0
