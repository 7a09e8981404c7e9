"""Prefix memory: the lengths of earlier answers behind the same prompt blocks, session, tenant and template.

A request has scopes, from general to specific: its tenant, its declared template, the chained hashes of its prompt's
blocks, its session; each for its LLM. Each scope has a node with decayed statistics of the log lengths y observed
there, and of the medians m (log) that a text predictor gave for them. From a starting prediction (mu, sigma), that of
the text predictor or, without one, of the LLM's history, a prediction descends the scopes that have observations:

    location += n / (n + k) * (mean_y + slope * (mu - mean_m) - location)

n is the node's decayed number of observations. k is what the scope above is worth, in observations; for each kind of
scope it is learned from the likelihood of past lengths (empirical Bayes, averaged over eight values from 0.1 to 1,000):
where prefixes say nothing, k grows and the starting prediction remains. The slope is a ridge regression of y on m in
the node, towards the slope of the scope above, at the top 1; without a text predictor it is 0. So a node with equal
lengths for different texts ignores the text. Scopes that have the same observations count once. Of a long chain the
first 8 blocks count, and 4 in every doubling after that. Variances shrink in the same way, and a factor per amount of
evidence, estimated online, calibrates the scale.

Observations have the weights of a log-t (nu 3.5), a censored one counts as its conditional expectation, and a node
forgets as the fast memory of `history` does (35 observations). Memory is bounded: a new node replaces the least
recently observed one of a set of eight. Neither text nor a model is needed. One thread owns a memory; another
one may save it.
"""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import LogT
from lengthwise.predictors.contract import LogTPredictions, PredictionInput, as_inputs
from lengthwise.predictors.history import History
from lengthwise.prefixes import Scopes

MAX_BYTES: Final = 64 << 20
"""Memory of the nodes, 40 bytes each: 1.6 million."""

FORMAT: Final = 1
_PIECE: Final = 1 << 14  # nodes that are copied at once while the owner waits

_KEPT: Final = ("keys", "stats", "learned", "clock")


def scopes_of(
    llm: str,
    blocks: Sequence[int] | NDArray[np.uint64] = (),
    *,
    tenant: str | None = None,
    template: str | None = None,
    session: str | None = None,
) -> Scopes:
    """Return the scopes of a request for this LLM. Templates and sessions are those of the tenant."""
    of_llm = _llm_digest(llm)
    of_tenant = of_llm if tenant is None else _digest(tenant, of_llm)
    names = (
        0 if tenant is None else of_tenant,
        0 if template is None else _digest(template, of_tenant ^ 1),
        0 if session is None else _digest(session, of_tenant ^ 2),
        of_llm,
    )
    return Scopes(np.asarray(blocks, np.uint64), np.array(names, np.uint64))


@lru_cache(maxsize=1024)
def _llm_digest(llm: str) -> int:
    return _digest(llm, 0)


def _digest(name: str, seed: int) -> int:
    return xxhash.xxh3_64_intdigest(name.encode(errors="surrogatepass"), seed)


class PrefixMemory:
    """Predictions from earlier answers with the same prefix, session, tenant or template.

    The first one of a process compiles the kernel or loads it from the cache, so that no request waits for it.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        from lengthwise.predictors import memory_kernel as kernel

        if max_bytes < kernel.NODE_BYTES * kernel.WAYS:
            raise InputError(f"a memory of {max_bytes} bytes", hint=f"give at least {kernel.NODE_BYTES * kernel.WAYS}")
        self._kernel = kernel
        self.max_bytes = max_bytes
        self._arrays = kernel.new_arrays(max_bytes)
        self._lock = threading.Lock()
        trial = kernel.new_arrays(kernel.NODE_BYTES * kernel.WAYS)
        scopes = scopes_of("", [1])
        kernel.observe(*trial, *scopes, 5.0, 1.0, 1, 5.0, False)
        kernel.predict(*trial[:4], *scopes, 5.0, 1.0, 1)

    def __repr__(self) -> str:
        return f"PrefixMemory({self.seen} lengths, {self.held} of {len(self._arrays.keys)} nodes)"

    @property
    def seen(self) -> int:
        """Answers observed."""
        return int(self._arrays.counters[self._kernel.CLOCK])

    @property
    def held(self) -> int:
        """Nodes in use."""
        return int(self._arrays.counters[self._kernel.HELD])

    def predict(self, scopes: Scopes, start: LogT, *, text: bool) -> LogT:
        """Return the prediction; `start` is that of a text predictor, or without `text` that of the LLM's history."""
        keys, stats, stamps, learned, _ = self._arrays
        blocks, names = scopes
        with self._lock:
            mu, sigma = self._kernel.predict(
                keys, stats, stamps, learned, blocks, names, start.mu, start.sigma, int(text)
            )
        return LogT(mu, sigma, start.cap, start.nu)

    def observe(self, scopes: Scopes, start: LogT, tokens: int, *, text: bool, censored: bool = False) -> None:
        """Observe an answer's length, or a lower bound of it if censored. Observe each answer once."""
        y = math.log(max(1, tokens))
        with self._lock:
            self._kernel.observe(*self._arrays, *scopes, start.mu, start.sigma, int(text), y, censored)

    def state(self) -> bytes:
        """Return what is learned, in NumPy's npz format.

        Another thread than the owner may call it: nodes are copied in pieces, of which the owner waits for one at most.
        """
        arrays, pieces = self._arrays, []
        with self._lock:
            learned, clock = arrays.learned.copy(), arrays.counters[self._kernel.CLOCK].copy()
        for start in range(0, len(arrays.keys), _PIECE):
            piece = slice(start, start + _PIECE)
            with self._lock:
                used = arrays.keys[piece] != 0
                pieces.append((arrays.keys[piece][used], arrays.stats[piece][used]))
        keys, stats = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        # Oldest first: a smaller memory that restores it keeps the newest.
        order = np.argsort(stats.view(np.uint32)[:, self._kernel.STAMP], kind="stable")
        stored = io.BytesIO()
        np.savez(stored, format=FORMAT, keys=keys[order], stats=stats[order], learned=learned, clock=clock)
        return stored.getvalue()

    def restore(self, state: bytes, source: str = "prefix memory") -> None:
        """Continue from a saved state; InputError, and no change, if it is not one."""
        kernel = self._kernel
        arrays = kernel.new_arrays(self.max_bytes)
        try:
            with np.load(io.BytesIO(state), allow_pickle=False) as stored:
                written = int(stored["format"])
                parts = {name: stored[name] for name in _KEPT} if written <= FORMAT else {}
        except Exception as error:  # a damaged zip file raises many kinds
            raise InputError("is not a saved prefix memory", source=source, hint="delete it to start afresh") from error
        if written > FORMAT:
            raise InputError(f"has format {written}, newer than {FORMAT}", source=source, hint="update lengthwise")
        if not _is_sound(parts, arrays):
            raise InputError("is a damaged prefix memory", source=source, hint="delete it to start afresh")
        kernel.insert(arrays.keys, arrays.stats, arrays.stamps, arrays.counters, parts["keys"], parts["stats"])
        arrays.learned[:] = parts["learned"]
        arrays.counters[kernel.CLOCK] = parts["clock"]
        self._arrays = arrays


def _is_sound(parts: dict[str, NDArray[Any]], like: Any) -> bool:
    keys, stats, learned, clock = (parts[name] for name in _KEPT)
    shaped = (
        keys.dtype == np.uint64
        and stats.dtype == np.float32
        and stats.shape == (*keys.shape, like.stats.shape[1])
        and learned.shape == like.learned.shape
        and clock.shape == ()
        and np.issubdtype(clock.dtype, np.integer)
    )
    if not shaped:
        return False
    numbers = stats[:, :-1]  # the last column is a time
    finite = np.isfinite(numbers).all() and np.isfinite(learned).all()
    positive = (keys > 0).all() and (numbers[:, 0] > 0).all() and (learned[:, -3:, :2] > 0).all()
    return bool(finite and positive and clock >= 0)


class MemoryPredictor:
    """Prefix memory over the LLM's history: `memory`. Over a text predictor it is part of a `learner.Learner`."""

    def __init__(self, memory: PrefixMemory | None = None) -> None:
        self.memory = PrefixMemory() if memory is None else memory
        self._history = History()

    def __repr__(self) -> str:
        return f"MemoryPredictor({self._history!r}, {self.memory!r})"

    def predict(
        self, inputs: Sequence[PredictionInput] | Sequence[str], llms: Sequence[str] | None = None
    ) -> LogTPredictions:
        """Return one prediction for each input, in order, from the lengths observed so far."""
        asked = as_inputs(inputs, llms)
        start = self._history.predict(asked)
        found = [self.memory.predict(scopes_of_request(each), start[row], text=False) for row, each in enumerate(asked)]
        mu, sigma, caps = (np.array([getattr(each, name) for each in found]) for name in ("mu", "sigma", "cap"))
        return LogTPredictions.of(mu, sigma, caps, nu=start.nu)

    def observe(self, request: PredictionInput, tokens: int, *, censored: bool = False) -> None:
        """Observe an answer's length, or a lower bound of it if censored. Observe each answer once."""
        start = self._history.prediction(request.llm, request.cap)
        self.memory.observe(scopes_of_request(request), start, tokens, text=False, censored=censored)
        self._history.observe(request.llm, tokens, censored=censored)

    def state(self) -> bytes:
        """Return what the memory has learned, as a host saves it; the history is not part of it."""
        return self.memory.state()

    def restore(self, state: bytes, source: str = "prefix memory") -> None:
        """Continue from a saved state; InputError, and no change, if it is not one."""
        self.memory.restore(state, source)


def scopes_of_request(request: PredictionInput) -> Scopes:
    """Return the scopes that a request names."""
    return scopes_of(
        request.llm, request.blocks, tenant=request.tenant, template=request.template, session=request.session
    )
