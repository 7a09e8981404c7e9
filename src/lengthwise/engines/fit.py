"""A cost model from an engine's steps: how long a step takes by what it holds, robust to a machine that stalls.

    step = base + prefill_token * n + prefill_pair * q + decode * B + kv_token * K      (seconds; see StepCost)

Non-negative least squares on relative errors, reweighted so that steps far off count little (Huber): a stall says
nothing of what a token costs. But stalls take time, and a queue feels all of it, so at last all six coefficients are
raised together until the steps fitted on take as long as they did, each counted at `stall` times its fit at most.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.optimize import nnls

from lengthwise.errors import InputError
from lengthwise.simulator.costs import StepCost
from lengthwise.simulator.engine_file import engine_yaml
from lengthwise.simulator.spec import EngineSpec
from lengthwise.workloads.files import atomic_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from lengthwise.engines.steps import EngineFacts

    Floats = NDArray[np.float64]

_LEAST_STEPS: Final = 20
STALL: Final = 10.0  # times the fit: longer steps say more of the machine than of the engine
_HUBER: Final = 1.345  # 95 % as good as least squares where nothing stalls
_ROUNDS: Final = 30
_BASE_S: Final = 1e-6  # where the fit finds none: a step takes some time


@dataclass(frozen=True, eq=False)
class StepTimes:
    """What steps held and how long they took: columns."""

    prompt_tokens: Floats
    prompt_pairs: Floats
    decodes: Floats
    context_tokens: Floats
    seconds: Floats

    @classmethod
    def of(cls, table: pa.Table) -> StepTimes:
        """From a log of steps."""
        names = ("prompt_tokens", "prompt_pairs", "decodes", "context_tokens", "seconds")
        return cls(*(table[name].to_numpy().astype(np.float64) for name in names))

    @classmethod
    def joined(cls, many: Sequence[StepTimes]) -> StepTimes:
        """The steps of several logs together."""
        return cls(*(np.concatenate([getattr(one, each.name) for one in many]) for each in fields(cls)))

    @property
    def decoding(self) -> NDArray[np.bool_]:
        """Whether anybody decodes in a step."""
        return np.asarray(self.decodes > 0)

    @property
    def prefilling(self) -> NDArray[np.bool_]:
        """Whether any prompt is computed in a step."""
        return np.asarray(self.prompt_tokens > 0)

    def at(self, cost: StepCost) -> Floats:
        """How long the steps take by a cost model."""
        return np.asarray(self.columns() @ np.array(list(asdict(cost).values())))

    def columns(self) -> Floats:
        """What each of StepCost's coefficients, in their order, is multiplied with."""
        decoding = self.decoding.astype(np.float64)
        held = (self.prompt_tokens, self.prompt_pairs, self.decodes, self.context_tokens)
        return np.stack([1.0 - decoding, decoding, *held], axis=1)

    def __len__(self) -> int:
        return len(self.seconds)


@dataclass(frozen=True)
class Share:
    """How well one kind of step is met. Errors are relative to the fit; that of single steps is before it is raised."""

    kind: str
    steps: int
    seconds: float
    median_error: float
    p90_error: float
    total_error: float
    """Of the seconds of all these steps: fitted over measured, less 1."""


@dataclass(frozen=True)
class FittedCost:
    """A cost model, and how well it meets the steps that it was fitted on."""

    cost: StepCost
    raised: float
    """What stalls add to every step: the factor by which all coefficients were raised at the end."""
    shares: tuple[Share, ...]
    """All steps first, then those that only decode, only compute prompts, or do both."""


def fit_cost(steps: StepTimes, stall: float = STALL) -> FittedCost:
    """Fit; an InputError where the steps do not show what is asked."""
    _check(steps)
    columns, seconds = steps.columns(), steps.seconds
    robust = _huber(columns, seconds)
    fitted = columns @ robust
    raised = float(np.minimum(seconds, stall * fitted).sum() / fitted.sum())
    prefill_base, decode_base, *others = (robust * raised).tolist()
    if not (steps.prefilling & ~steps.decoding).any():
        prefill_base = decode_base  # never seen alone; both are mostly the reading of the weights
    cost = StepCost(max(prefill_base, _BASE_S), max(decode_base, _BASE_S), *others)
    return FittedCost(cost, raised, tuple(_shares(steps, steps.at(cost), raised)))


def _check(steps: StepTimes) -> None:
    if not (np.isfinite(steps.seconds) & (steps.seconds > 0)).all():
        raise InputError("a step that took no time", field="seconds", hint="give seconds above 0")
    if len(steps) < _LEAST_STEPS:
        raise InputError(f"{len(steps)} steps are too few to fit", hint=f"give at least {_LEAST_STEPS}")
    for what, seen in (("decodes", steps.decoding), ("computes a prompt", steps.prefilling)):
        if not seen.any():
            raise InputError(f"no step {what}", hint="give a log of an engine that answered requests")


def _huber(columns: Floats, seconds: Floats) -> Floats:
    """Non-negative coefficients, errors relative to the fit, those beyond the usual counting less and less."""
    fitted, trust = seconds, np.ones(len(seconds))
    found = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        before, found = found, _nnls(columns, seconds, np.sqrt(trust) / fitted)
        fitted = np.maximum(columns @ found, _BASE_S)
        error = np.abs(seconds / fitted - 1.0)
        usual = _HUBER * 1.4826 * max(float(np.median(error)), 1e-9)
        trust = np.minimum(1.0, usual / np.maximum(error, 1e-12))
        if np.allclose(before, found, rtol=1e-6, atol=0.0):
            break
    return found


def _nnls(columns: Floats, seconds: Floats, weight: Floats) -> Floats:
    weighted = columns * weight[:, None]
    size = np.linalg.norm(weighted, axis=0)
    size[size == 0.0] = 1.0  # a column of nothing gets no coefficient
    turned, triangle = np.linalg.qr(weighted / size)  # the same problem with as many rows as coefficients
    return np.asarray(nnls(triangle, turned.T @ (seconds * weight))[0] / size, np.float64)


def _shares(steps: StepTimes, fitted: Floats, raised: float) -> list[Share]:
    every = np.ones(len(steps), bool)
    kinds = {
        "all": every,
        "decoding only": steps.decoding & ~steps.prefilling,
        "prompts only": steps.prefilling & ~steps.decoding,
        "both": steps.decoding & steps.prefilling,
    }
    return [_share(kind, steps.seconds[which], fitted[which], raised) for kind, which in kinds.items() if which.any()]


def _share(kind: str, seconds: Floats, fitted: Floats, raised: float) -> Share:
    error = np.abs(raised * seconds / fitted - 1.0)
    median, p90 = (float(part) for part in np.percentile(error, (50, 90)))
    total = float(seconds.sum())
    return Share(kind, len(seconds), total, median, p90, float(fitted.sum()) / total - 1.0)


def engine_spec(name: str, cost: StepCost, facts: EngineFacts) -> EngineSpec:
    """An engine as the simulator takes it."""
    limits = asdict(facts)
    del limits["engine"], limits["model"]
    return EngineSpec(name, cost, **limits)


def write_fitted(path: Path, spec: EngineSpec, said: str) -> None:
    """Write an engine's file, with a comment on where its figures come from."""
    with atomic_path(path) as temporary:
        temporary.write_text("".join(f"# {line}\n" for line in said.splitlines()) + engine_yaml(spec), encoding="utf-8")
