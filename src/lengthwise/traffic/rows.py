"""The record of a finished request, the same wherever one is logged, measured or simulated.

`RequestRow` is the one list of fields. A source that knows fewer writes a projection: some of the fields, under the
same names, and columns of its own beside them. Waiting time and latencies are derived, not stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa


Floats = NDArray[np.float64]

PredictionSource = Literal["hint", "predictor", "history", "prior"]
"""Where the prediction of a request comes from."""

RequestOutcome = Literal["ok", "refused", "client_error", "engine_error", "broken_stream", "cancelled", "bug"]
"""ok: answered. refused: not taken (429 or 503, or too long for the engine). client_error, engine_error: another error
status instead of an answer. broken_stream: the answer broke off. cancelled: the client disconnected, or the server
stopped. bug: an error of the gateway itself."""


class RequestRow(NamedTuple):
    """One finished request; a field that its source does not know is None."""

    arrival_s: float
    """When it arrived. Times are seconds on one clock: since 1970 in a log, since the start in a run."""
    started_s: float | None = None
    """When it got its first slot on an engine."""
    first_token_s: float | None = None
    """When the first token of its answer arrived; None for an answer in one piece."""
    finished_s: float | None = None
    """When it ended."""
    outcome: RequestOutcome = "ok"
    status: int | None = None
    """The HTTP status that the client received."""
    finish_reason: str | None = None
    """Why the engine ended the answer."""
    censored: bool = False
    """Whether the answer was cut off, by `max_tokens`, its client or an error: its tokens are a lower bound."""
    request: int | None = None
    """Its number in its workload or since the start."""
    request_id: str | None = None
    """The client's id, or the gateway's."""
    tenant: str | None = None
    request_class: str | None = None
    """The class that it names, or its tenant's."""
    llm: str | None = None
    """The model that it asked for."""
    engine: str | None = None
    """The name of the engine that it was sent to last."""
    policy: str | None = None
    """The policy in force when it ended."""
    input_tokens: int | None = None
    """Tokens of its prompt, as the engine reports them."""
    input_bytes: int | None = None
    """Size of its body."""
    cached_tokens: int | None = None
    """Tokens of its prompt that were in the engine's prefix cache at its first admission."""
    output_tokens: int | None = None
    """Tokens of its only answer; None where unknown, or where it has several answers."""
    counted: bool = False
    """Whether its output tokens are a count of the stream's events, which the engine did not confirm."""
    one_answer: bool = True
    """Whether it asks for one answer to one prompt."""
    max_tokens: int | None = None
    """The most tokens that its answer may have; None where it declares no limit."""
    thinking: str | None = None
    """Its switch for reasoning, where its fields state one: off, on, low, medium or high."""
    ttft_limit_s: float | None = None
    """Seconds to its first token that it may take, by itself, its tenant, its class or its model; None: no limit."""
    per_token_limit_s: float | None = None
    """The same of E2E per output token."""
    e2e_limit_s: float | None = None
    """The same to its last token."""
    preemptions: int | None = None
    recomputed_tokens: int | None = None
    """Tokens computed again after preemptions."""
    resubmissions: int | None = None
    """How often it was sent again, after an engine had refused or lost it."""
    source: PredictionSource | None = None
    """Where the prediction that ordered it came from; `prior` with a `predictor_mu`: it ran before that arrived."""
    predictor: str | None = None
    """The predictor in use at its arrival."""
    mu: float | None = None
    """Of its prediction, a log-t of its answer's tokens: the client's hint (sigma 0), else the predictor's with what it
    has learned, else that of the LLM's history where it was ordered by it."""
    sigma: float | None = None
    predictor_mu: float | None = None
    """Of the model alone, without what was learned while serving."""
    predictor_sigma: float | None = None
    history_mu: float | None = None
    """Of the LLM's history at its arrival."""
    history_sigma: float | None = None
    names: str | None = None
    """Keyed hashes of tenant, template, session and LLM (8 bytes each, hexadecimal), for prefix memory."""
    blocks: str | None = None
    """Keyed hashes of the prompt's first blocks."""
    text: str | None = None
    """What a predictor reads of the prompt, where prompts are kept."""


LIMITS: Final = {"ttft_limit_s": "ttft_s", "per_token_limit_s": "per_token_s", "e2e_limit_s": "e2e_s"}
"""Fields with latency limits, and the latencies that they limit."""


def _kind(hint: Any) -> tuple[type, bool]:  # an annotation
    """Return the type of a field's value, and whether it may be None."""
    values = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    value = next(each for each in values if each is not NoneType)
    return (str if get_origin(value) is Literal else value), NoneType in values


_KINDS: Final = {name: _kind(hint) for name, hint in get_type_hints(RequestRow).items()}
_NUMPY: Final = {(float, False): "f8", (float, True): "f8", (int, False): "i8", (int, True): "f8", (bool, False): "?"}


def row_schema(fields: Iterable[str] = RequestRow._fields) -> pa.Schema:
    """Return the Arrow schema of some fields."""
    import pyarrow as pa

    types = {float: pa.float64(), int: pa.int64(), bool: pa.bool_(), str: pa.string()}
    return pa.schema([(name, types[_KINDS[name][0]]) for name in fields])


def row_dtype(fields: Iterable[str]) -> np.dtype[np.void]:
    """Return the NumPy dtype of some fields: a number that may be missing is a float, NaN; a text is a number too.

    The number of a text is its place in a list that the owner of the array keeps.
    """
    return np.dtype([(name, _NUMPY.get(_KINDS[name], "i2")) for name in fields])


def latencies(
    *, arrival_s: Floats, first_token_s: Floats, finished_s: Floats, output_tokens: NDArray[Any]
) -> dict[str, Floats]:
    """Return the latencies of each request in seconds; NaN for refused ones, and TPOT for one token.

    TTFT = first token - arrival. E2E = finished - arrival. TPOT = (finished - first token) / (output tokens - 1).
    Per-token latency = E2E / output tokens.
    """
    e2e = finished_s - arrival_s
    gaps = np.where(output_tokens > 1, output_tokens - 1, np.nan)
    return {
        "ttft_s": first_token_s - arrival_s,
        "tpot_s": (finished_s - first_token_s) / gaps,
        "e2e_s": e2e,
        "per_token_s": e2e / output_tokens,
    }
