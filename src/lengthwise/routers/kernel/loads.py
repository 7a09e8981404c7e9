"""The columns in which a ledger keeps what engines have to do: one row of numbers per engine, for compiled loops."""

from __future__ import annotations

from enum import IntEnum


class Load(IntEnum):
    """A column. Sums are over live jobs: those that were sent to the engine and have not finished.

    The compiled files repeat the numbers, so that they change where these do.
    """

    UP = 0  # 1 or 0
    LIVE = 1  # jobs
    RUNNING = 2  # of these, jobs that are taken to run
    ENDS = 3  # sum over running jobs of the decode step at which each is expected to end
    WAITING_TOKENS = 4  # expected answers of those that wait
    CLOCK = 5  # decode steps taken, as far as can be known
    BEGUN = 6  # sum over running jobs of the decode step at which each began its answer
    BUSY_UNTIL = 7  # seconds: when the prompts sent so far are computed; the clock stands still until then
    UNCACHED = 8  # tokens of prompts that had to be computed
    PROMPT_S = 9  # seconds that these took
    CONTEXT = 10  # tokens of prompts and expected answers
    PRIVATE = 11  # the same without what was found cached: what is not shared
    SPREAD = 12  # variance of what is not shared, tokens squared
    FOREIGN = 13  # requests that the engine has told of and that are not ours
    SCRAPED_AT = 14  # seconds
    KV_USE = 15  # share of KV memory, as the engine told; NaN if it has not
    PREFILL_TOKEN_S = 16
    PREFILL_PAIR_S = 17
    STEP_S = 18
    SEQUENCE_S = 19
    KV_TOKEN_S = 20
    MAX_NUM_SEQS = 21
    KV_TOKENS = 22
    BLOCK_TOKENS = 23
