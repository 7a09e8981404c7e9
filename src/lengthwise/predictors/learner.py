"""Learning while serving: what finished answers say about the lengths of the next ones.

For answer i of an LLM, with mu_i and sigma_i the text predictor's prediction, y_i its log length:

    y_i = mu_i + shift + slope (mu_i - mean mu) + w . (description_i - mean description) + error_i
    error_i = factor * sigma_i (sigma_i / usual sigma)^(exponent - 1) * T_i,     T Student-t with nu 3.5

The description is the prompt's words and pairs of words, hashed, and the numbers that the text predictor computes
anyway (`contract.DescribingPredictor`). w and slope have normal priors around 0 and are fitted to the last 1,024
answers with weights of the log-t, the older the less (`learner_kernel`). Five regressions with prior variances from 0
to 10 run side by side (at 0 the text adds nothing); their mean is weighted by the likelihood of each answer before it
was observed; after n answers n / (n + 30) of it is used. Shift and factor are a `history.Tracker` of the errors that
remain: steady without drift, fast after a change, and after a change the kept answers move with it. The exponent, 1 at
first, is what the predicted spread is worth. The level of 90 % intervals is then held by adaptive conformal inference
(Gibbs and Candes 2021). A censored answer counts as its conditional expectation, one that is not finite is ignored.
Without observations the prediction is the text predictor's, unchanged.

Where a prefix memory is given, its nodes descend from this prediction: an answer is explained by the model, then by
the text, then by the prefix, and each learns from what the ones before it leave.

There is one learner per LLM, and where requests have a switch for thinking one for each of its states. A new one starts
as the shared one, which has observed the first answers of every LLM.
With `tenants_apart` every tenant has its own of all of these. One thread owns a learner; there are no locks.

A `LearnedPredictor` is what a model file holds after `lengthwise adapt --from`: a text predictor and what a learner has
learned from a log, LLM by LLM. A learner on it begins there.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import TIE_NU, LogT, log_t
from lengthwise.predictors import learner_kernel as kernel
from lengthwise.predictors.contract import (
    DescribingPredictor,
    Description,
    LengthPredictor,
    LoadedPredictor,
    LogTPredictions,
    PredictionInput,
    Predictions,
    as_inputs,
    as_logt,
)
from lengthwise.predictors.history import Tracker
from lengthwise.predictors.prefix_memory import PrefixMemory, scopes_of_request
from lengthwise.predictors.prompt_words import as_bytes, excerpt, split, words_and_pairs
from lengthwise.predictors.text_regression import NOTHING, STORED, TextRegression, try_kernel

Floats = NDArray[np.float64]

MAX_BYTES: Final = 256 << 20
"""Memory of all learners of a process."""
FORMAT: Final = 1

_SHARED_ANSWERS: Final = 100  # of an LLM, that the shared learner observes
_PRIOR_WEIGHT: Final = 2.0  # of the shift at first, in answers with a spread of 1
_PRIOR_COUNT: Final = 2.0  # answers behind the factor at first
_SPREAD_WEIGHT: Final = 2.0  # sum of squares behind an exponent of 1
_USUAL_MU: Final = 5.5  # log length that the slope turns around
_USUAL: Final = 32  # answers that decide what spread is usual
_LEVEL: Final = 0.9
_REACH: Final = log_t.isf((1 - _LEVEL) / 2, TIE_NU)
_LEVEL_MEMORY: Final = 150.0
_LEVEL_STEP: Final = 4.0
_MAX_LEVEL: Final = 1.0  # log factor on the spread
_MAX_SHIFT: Final = 9.0  # log; from 1 token to 8,192
_MAX_MU: Final = 14.0
_REMEMBERED: Final = 8192  # predictions of requests without a known length; an evicted one is computed again
_OWN_BYTES: Final = 4096  # of a learner beside its arrays, about
_TENANT_MEMORY: Final = 2 << 20  # bytes of prefix memory, where tenants are apart
_MAX_TENANTS: Final = 128
_AFRESH: Final = "delete it to start afresh"


@dataclass(slots=True)
class _Seen:
    """A request as it was predicted."""

    mu: float
    sigma: float
    description: Description

    @property
    def finite(self) -> bool:
        return math.isfinite(self.mu) and math.isfinite(self.sigma) and self.sigma > 0.0


@dataclass(eq=False)
class LlmLearner:
    """What the answers of one LLM have taught: calibration, and with `text` a regression on prompts."""

    tracker: Tracker
    text: TextRegression | None
    usual_spread: float = 0.0
    """Mean log spread of the first predictions."""
    exponent: float = 1.0
    information: float = _SPREAD_WEIGHT
    level: float = 0.0
    """Log factor that holds the level of intervals."""
    answers: int = 0

    @classmethod
    def starting(cls, features: int | None) -> LlmLearner:
        """Return one without observations; `features` None: calibration only."""
        tracker = Tracker.starting(0.0, 1.0, _PRIOR_COUNT, weight=_PRIOR_WEIGHT)
        return cls(tracker, None if features is None else TextRegression(features))

    def for_new_llm(self) -> LlmLearner:
        """Return the learner of a new LLM that this one, the shared one, stands for."""
        tracker = Tracker.starting(self.tracker.location, self.tracker.scale, _PRIOR_COUNT, weight=_PRIOR_WEIGHT)
        return replace(self, tracker=tracker, text=None if self.text is None else self.text.copy(), answers=0)

    @property
    def size(self) -> int:
        """Bytes, about."""
        return _OWN_BYTES + (0 if self.text is None else self.text.size)

    def adjustment(self, seen: _Seen) -> tuple[float, float]:
        """Return what to add to the log median, and the factor on the spread."""
        shift = self.tracker.location
        if self.text is not None:
            shift += self.text.part(seen.description, seen.mu - _USUAL_MU)
        relative = math.log(seen.sigma) - self.usual_spread
        factor = self.tracker.scale * math.exp((self.exponent - 1.0) * relative + self.level)
        return min(max(shift, -_MAX_SHIFT), _MAX_SHIFT), factor

    def observe(self, seen: _Seen, y: float, *, censored: bool) -> None:
        """Observe a log length, or a lower bound of it if censored."""
        self.answers += 1
        log_spread = math.log(seen.sigma)
        if self.answers <= _USUAL:
            self.usual_spread += (log_spread - self.usual_spread) / self.answers
        relative = log_spread - self.usual_spread
        unit = seen.sigma * math.exp((self.exponent - 1.0) * relative)
        target, median = y - seen.mu, seen.mu - _USUAL_MU
        part = 0.0 if self.text is None else self.text.part(seen.description, median)
        tracker = self.tracker
        z = (target - part - tracker.location) / (tracker.scale * unit)
        if self.text is not None:
            self.text.judge(seen.description, median, target - tracker.location, unit, censored=censored)
        self._learn_spread(z, relative, censored=censored)
        before, alarms = tracker.location, tracker.alarms
        tracker.observe(target - part, unit, censored=censored)
        if self.text is not None:
            if tracker.alarms > alarms:
                self.text.move(tracker.location - before)
            self.learn_text(seen, target, censored=censored)

    def learn_text(self, seen: _Seen, target: float, *, censored: bool) -> None:
        """Teach the regression only."""
        if self.text is not None:
            spread = math.log(seen.sigma) - self.usual_spread
            scale = self.tracker.scale * math.exp(self.usual_spread)
            self.text.learn(
                seen.description, target, seen.mu - _USUAL_MU, spread, scale, self.exponent, censored=censored
            )

    def _learn_spread(self, z: float, relative: float, *, censored: bool) -> None:
        """Follow the exponent by its likelihood, and the level by how often intervals hold.

        A censored answer counts with the probability that it ends outside. Left out, the short ones would be counted
        alone, of which fewer are outside, and intervals would become too narrow.
        """
        reach = _REACH * math.exp(self.level)
        if censored:
            outside = _outside(reach, z)
        else:
            outside = float(abs(z) > reach)
            surprise = log_t.outlier_weight(z) * z * z - 1.0
            self.information += relative * relative
            self.exponent = min(max(self.exponent + surprise * relative / self.information, 0.0), 1.0)
        step = _LEVEL_STEP / (10.0 + min(self.answers, _LEVEL_MEMORY))
        self.level += step * (outside - (1.0 - _LEVEL))
        self.level = min(max(self.level, -_MAX_LEVEL), _MAX_LEVEL)


def _outside(reach: float, bound: float) -> float:
    """Return P(|T| > reach) given T > bound."""
    if bound >= reach:
        return 1.0
    below = max(0.0, log_t.sf(bound, TIE_NU) - log_t.sf(-reach, TIE_NU))
    return (log_t.sf(reach, TIE_NU) + below) / log_t.sf(bound, TIE_NU)


@dataclass(eq=False)
class _Tenant:
    """The learners of one tenant, by LLM, the least recently used first; and its prefix memory."""

    shared: LlmLearner
    memory: PrefixMemory | None
    by_llm: OrderedDict[str, LlmLearner] = field(default_factory=OrderedDict)

    @property
    def size(self) -> int:
        return self.shared.size + sum(each.size for each in self.by_llm.values())

    def memory_of(self, request: PredictionInput, start: LogT) -> LogT:
        """Return the prediction that prefix memory makes of another."""
        return start if self.memory is None else self.memory.predict(scopes_of_request(request), start, text=True)


class LearnedPredictor:
    """A text predictor with what a `Learner` had learned on it; it learns no more."""

    def __init__(self, base: LoadedPredictor, learned: bytes, card: Mapping[str, Any] | None = None) -> None:
        self.base = base
        self.learned = learned
        """As `Learner.learned` returns it."""
        self.card = dict(base.card if card is None else card)
        self._learner = Learner(self)

    def __repr__(self) -> str:
        return f"LearnedPredictor({self.base!r})"

    @property
    def llms(self) -> tuple[str, ...]:
        """The LLMs that the text predictor knows."""
        return self.base.llms

    def predict(
        self, inputs: Sequence[PredictionInput] | Sequence[str], llms: Sequence[str] | None = None
    ) -> LogTPredictions:
        """Return one prediction for each input, in order."""
        return self._learner.predict(inputs, llms)


class Learner:
    """A text predictor that learns from every finished answer: `fast+learn`, `default+learn`, `memory+fast+learn`.

    `learning` False: calibration and prefix memory only, no regression on the text. `tenants_apart`: no tenant's
    answers change another's predictions. Learners take at most `max_bytes`; above that the least recently used one of
    the tenant with the most goes.
    """

    def __init__(
        self,
        predictor: LengthPredictor,
        *,
        learning: bool = True,
        memory: bool = False,
        tenants_apart: bool = False,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        learned = predictor.learned if isinstance(predictor, LearnedPredictor) else b""
        predictor = predictor.base if isinstance(predictor, LearnedPredictor) else predictor
        self.predictor = predictor
        self.learning = learning
        self.tenants_apart = tenants_apart
        self.max_bytes = max_bytes
        self._memory = memory
        self._describe = _describer(predictor) if learning else _undescribed(predictor)
        self._features: int | None = None
        self._learned = hashlib.sha256(learned).hexdigest()[:16] if learned else ""
        self._begins: Mapping[str | None, _Tenant] = {}
        """What was learned before, where tenants begin; None is for those without their own."""
        self._tenants: OrderedDict[str | None, _Tenant] = OrderedDict()
        self._waiting: OrderedDict[int, _Seen] = OrderedDict()
        self._answers = 0
        if memory:
            PrefixMemory(_TENANT_MEMORY)  # compiles its kernels
        if learning:
            try_kernel()
        if learned:
            self._begins, about = self._read_state(learned, "learned part")
            self._features = about["features"]

    def __repr__(self) -> str:
        return f"Learner({self.predictor!r}, {self._answers} answers)"

    @property
    def llms(self) -> tuple[str, ...]:
        """The LLMs that the text predictor knows."""
        return tuple(getattr(self.predictor, "llms", ()))

    @property
    def card(self) -> Mapping[str, Any]:
        """What the text predictor's file states."""
        return dict(getattr(self.predictor, "card", {}))

    @property
    def answers(self) -> int:
        """Answers observed."""
        return self._answers

    @property
    def size(self) -> int:
        """Bytes of all learners, about; prefix memory is apart."""
        return sum(each.size for each in self._tenants.values())

    def predict(
        self, inputs: Sequence[PredictionInput] | Sequence[str], llms: Sequence[str] | None = None
    ) -> LogTPredictions:
        """Return one prediction for each input, in order; other shapes become log-t."""
        asked = as_inputs(inputs, llms)
        predictions, seen = self._read(asked)
        # Plain numbers: for one request, the usual case, an operation on arrays takes ten times as long.
        mu, sigma, scale = [], [], []
        for request, each in zip(asked, seen, strict=True):
            median, spread = self._made(request, each, predictions.nu)
            mu.append(median)
            sigma.append(spread)
            scale.append(math.exp(median - each.mu))
        moved = np.array(scale)
        mean, std = predictions.sample_mean * moved, predictions.sample_std * moved
        nu, caps = predictions.nu, predictions.cap
        # What answers teach first is the level of their kind.
        level = None if self._answers or self._begins else predictions.level
        novelty = predictions.novelty
        return LogTPredictions(
            np.array(mu), np.array(sigma), caps, nu, sample_mean=mean, sample_std=std, novelty=novelty, level=level
        )

    def prediction(self, request: PredictionInput) -> LogT:
        """Return one prediction; the text predictor is not called again for a request that it has predicted."""
        return LogT(*self._made(request, self._known(request), TIE_NU), request.cap)

    def alone(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        """Return the predictions as they were before this learner observed anything.

        The text predictor does not predict again what it has predicted.
        """
        found = [self._alone(each, self._known(each)) for each in inputs]
        unknown = np.full(len(found), math.nan)
        mu, sigma = (np.array(column) for column in zip(*found, strict=True)) if found else (np.empty(0), np.empty(0))
        caps = np.array([float(each.cap) for each in inputs])
        return LogTPredictions(mu, sigma, caps, sample_mean=unknown, sample_std=unknown)

    def observe(self, request: PredictionInput, tokens: float, *, censored: bool = False) -> None:
        """Observe an answer's length, or a lower bound of it if censored. Observe each answer once.

        Censoring must not depend on the remaining length: by max_tokens, a deadline or the clock it does not. A length
        that is not finite, and one behind a prediction that is not, are ignored.
        """
        self._observe(request, self._known(request), tokens, censored=censored)

    def observe_predicted(
        self, request: PredictionInput, prediction: LogT, tokens: float, *, censored: bool = False
    ) -> None:
        """Observe an answer to a text that is not known, only what was predicted for it before (`alone`)."""
        self._observe(request, self._unread(request, prediction), tokens, censored=censored)

    def predict_again(self, request: PredictionInput, prediction: LogT) -> LogT:
        """Return the prediction for a text that is not known, from what was predicted for it before (`alone`)."""
        mu, sigma = self._start(request, self._unread(request, prediction))
        return LogT(mu, sigma, prediction.cap, prediction.nu)

    def _unread(self, request: PredictionInput, prediction: LogT) -> _Seen:
        """Return a request without its text, as the text predictor may have predicted it."""
        if self._features is None:
            self._read([PredictionInput("", request.llm)])
        blank = Description(NOTHING.terms, np.zeros(self._features or 0, np.float32))
        seen = _Seen(prediction.mu, prediction.sigma, blank)
        if seen.finite and (own := self._began_as(request)) is not None:
            shift, factor = own.adjustment(seen)
            seen.mu, seen.sigma = seen.mu - shift, seen.sigma / factor
        return seen

    def _observe(self, request: PredictionInput, seen: _Seen, tokens: float, *, censored: bool) -> None:
        if not (seen.finite and math.isfinite(tokens)):
            return
        y = math.log(max(1.0, tokens))
        tenant = self._tenant(request)
        if tenant.memory is not None:
            start = LogT(*self._start(request, seen), request.cap)
            tenant.memory.observe(scopes_of_request(request), start, max(1, int(tokens)), text=True, censored=censored)
        llm = request.learned_as
        own = tenant.by_llm.get(llm)
        size = 0 if own is None else own.size
        if own is None:
            own = tenant.by_llm[llm] = tenant.shared.for_new_llm()
        tenant.by_llm.move_to_end(llm)
        own.observe(seen, y, censored=censored)
        if own.answers <= _SHARED_ANSWERS:
            _share(tenant.shared, own, seen, y, censored=censored)
        self._answers += 1
        if own.size != size:
            self._stay_small()

    def _stay_small(self) -> None:
        while self.size > self.max_bytes:
            largest = max(self._tenants.values(), key=lambda each: each.size)
            if len(largest.by_llm) <= 1 and len(self._tenants) == 1:
                return  # one learner is always kept
            if largest.by_llm:
                largest.by_llm.popitem(last=False)
            else:
                self._tenants.popitem(last=False)

    def _key(self, request: PredictionInput) -> str | None:
        return request.tenant if self.tenants_apart else None

    def _tenant(self, request: PredictionInput) -> _Tenant:
        key = self._key(request)
        found = self._tenants.get(key)
        if found is None:
            features = self._features if self.learning else None
            memory = self._new_memory() if self._memory else None
            found = self._tenants[key] = _Tenant(LlmLearner.starting(features), memory)
            for name in dict.fromkeys((None, request.tenant)):
                if name in self._begins:
                    found.by_llm.update(copy.deepcopy(self._begins[name].by_llm))
            if len(self._tenants) > _MAX_TENANTS:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(key)
        return found

    def _new_memory(self) -> PrefixMemory:
        return PrefixMemory(_TENANT_MEMORY) if self.tenants_apart else PrefixMemory()

    def _start(self, request: PredictionInput, seen: _Seen) -> tuple[float, float]:
        """Return log median and spread before prefix memory."""
        tenant = self._tenants.get(self._key(request))
        if tenant is None:
            return self._alone(request, seen)
        return _adjusted(seen, tenant.by_llm.get(request.learned_as, tenant.shared))

    def _alone(self, request: PredictionInput, seen: _Seen) -> tuple[float, float]:
        """Return log median and spread without what this learner has observed."""
        return _adjusted(seen, self._began_as(request)) if self._begins else (seen.mu, seen.sigma)

    def _began_as(self, request: PredictionInput) -> LlmLearner | None:
        """Return what was learned before of the request's tenant and LLM, else of the LLM."""
        for name in (request.tenant, None):
            if name in self._begins and (own := self._begins[name].by_llm.get(request.learned_as)) is not None:
                return own
        return None

    def _made(self, request: PredictionInput, seen: _Seen, nu: float) -> tuple[float, float]:
        """Return log median and spread of a prediction."""
        mu, sigma = self._start(request, seen)
        if self._memory and seen.finite and (tenant := self._tenants.get(self._key(request))) is not None:
            found = tenant.memory_of(request, LogT(mu, sigma, request.cap, nu))
            mu, sigma = found.mu, found.sigma
        return mu, sigma

    def _read(self, asked: Sequence[PredictionInput]) -> tuple[LogTPredictions, list[_Seen]]:
        """Predict and describe, and remember both for the answers."""
        found, descriptions = self._describe(asked)
        predictions = as_logt(found)
        if self._features is None and descriptions:
            self._features = len(descriptions[0].features)
        seen = [
            _Seen(mu, sigma, each)
            for mu, sigma, each in zip(predictions.mu.tolist(), predictions.sigma.tolist(), descriptions, strict=True)
        ]
        for request, each in zip(asked, seen, strict=True):
            key = hash(request)  # not the request itself: a prompt may have megabytes
            self._waiting[key] = each
            self._waiting.move_to_end(key)
        while len(self._waiting) > _REMEMBERED:
            self._waiting.popitem(last=False)
        return predictions, seen

    def _known(self, request: PredictionInput) -> _Seen:
        """Return the request as it was predicted; it is remembered for the next answer to the same request."""
        return self._waiting.get(hash(request)) or self._read([request])[1][0]

    def state(self) -> bytes:
        """Return what is learned, in NumPy's npz format, with a fingerprint of the model that it was learned on."""
        described: list[dict[str, Any]] = []
        arrays: dict[str, NDArray[Any]] = {}
        for number, (name, tenant) in enumerate(self._tenants.items()):
            if tenant.memory is not None:
                arrays[f"memory{number}"] = np.frombuffer(tenant.memory.state(), np.uint8)
            for llm, learner in [(None, tenant.shared), *tenant.by_llm.items()]:
                own = {key: getattr(learner, key) for key in _NUMBERS}
                place = len(described)
                described.append({"tenant": name, "llm": llm, "tracker": asdict(learner.tracker), **own})
                if learner.text is not None:
                    arrays |= {f"{key}{place}": value for key, value in learner.text.stored().items()}
        about = {
            "format": FORMAT, "model": self.fingerprint, "features": self._features, "answers": self._answers,
            "learners": described,
        }  # fmt: skip
        stored = io.BytesIO()
        np.savez(stored, allow_pickle=False, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)
        return stored.getvalue()

    def learned(self, llms: Collection[str]) -> bytes:
        """Return what is learned of some LLMs (`learned_as`), for a `LearnedPredictor`; other LLMs are as without it.

        Call it on a learner that is not used any more.
        """
        for tenant in self._tenants.values():
            tenant.shared = LlmLearner.starting(self._features if self.learning else None)
            tenant.by_llm = OrderedDict((llm, own) for llm, own in tenant.by_llm.items() if llm in llms)
        return self.state()

    def restore(self, state: bytes, source: str = "learned state") -> None:
        """Continue from a saved state; InputError, and no change, if it is damaged or of another model."""
        tenants, about = self._read_state(state, source)
        if about["model"] != self.fingerprint:
            raise InputError("was learned on another model", source=source, hint=_AFRESH)
        self._tenants, self._answers, self._features = tenants, int(about["answers"]), about["features"]

    def _read_state(self, state: bytes, source: str) -> tuple[OrderedDict[str | None, _Tenant], Mapping[str, Any]]:
        """Return the tenants of a state, and what it says about itself."""
        try:
            with np.load(io.BytesIO(state), allow_pickle=False) as stored:
                about = json.loads(bytes(stored["about"]))
                written = int(about["format"])
                if written <= FORMAT:
                    tenants = self._restored(about, stored)
        except Exception as error:  # a damaged zip file raises many kinds
            raise InputError("is not a saved state of a learner", source=source, hint=_AFRESH) from error
        if written > FORMAT:
            raise InputError(f"has format {written}, newer than {FORMAT}", source=source, hint="update lengthwise")
        return tenants, about

    @property
    def fingerprint(self) -> str:
        """What tells the model apart that is learned on: kind, card and LLMs of the text predictor."""
        kind = f"{type(self.predictor).__module__}.{type(self.predictor).__qualname__}"
        about = [kind, self.card, self.llms, self.learning, kernel.ROWS, kernel.WIDTHS, self._learned]
        return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def _restored(self, about: Mapping[str, Any], stored: Mapping[str, NDArray[Any]]) -> OrderedDict[Any, _Tenant]:
        """Return the tenants of a state; ValueError or KeyError where it is damaged."""
        features = about["features"] if self.learning else None
        tenants: OrderedDict[str | None, _Tenant] = OrderedDict()
        for place, each in enumerate(about["learners"]):
            numbers = {key: kind(each[key]) for key, kind in _NUMBERS.items()}
            if not all(map(math.isfinite, numbers.values())) or numbers["information"] <= 0 or numbers["answers"] < 0:
                raise ValueError("not a learner")
            text = None
            if features is not None:
                own = {name: stored[f"{name}{place}"] for name in STORED}
                text = TextRegression.restored(own, int(features))
            learner = LlmLearner(Tracker.of_state(each["tracker"]), text, **numbers)
            if each["llm"] is None:
                name = f"memory{len(tenants)}"
                memory = None
                if self._memory:
                    memory = self._new_memory()
                    if name in stored:
                        memory.restore(stored[name].tobytes())
                tenants[each["tenant"]] = _Tenant(learner, memory)
            else:
                tenants[each["tenant"]].by_llm[str(each["llm"])] = learner
        return tenants


def _adjusted(seen: _Seen, learner: LlmLearner | None) -> tuple[float, float]:
    """Return log median and spread of a request by a learner."""
    if learner is None or not seen.finite:
        return seen.mu, seen.sigma
    shift, factor = learner.adjustment(seen)
    return min(max(seen.mu + shift, 0.0), _MAX_MU), seen.sigma * factor


def _share(shared: LlmLearner, own: LlmLearner, seen: _Seen, y: float, *, censored: bool) -> None:
    """Let the shared learner observe an answer; its regression takes the shift of the answer's LLM for its own."""
    text, shared.text = shared.text, None
    shared.observe(seen, y, censored=censored)
    shared.text = text
    shift = shared.tracker.location - own.tracker.location
    shared.learn_text(seen, y - seen.mu + shift, censored=censored)


_NUMBERS: Final[Mapping[str, Any]] = {
    "usual_spread": float, "exponent": float, "information": float, "level": float, "answers": int,
}  # fmt: skip


def describe(
    predictor: LengthPredictor, inputs: Sequence[PredictionInput]
) -> tuple[Predictions, Sequence[Description]]:
    """Return predictions and descriptions: for a text predictor that does not describe, words and pairs only."""
    return _describer(predictor)(inputs)


@dataclass(frozen=True, eq=False)
class KnownPrompts:
    """A text predictor whose predictions and descriptions exist already; the text of an input is its prompt's number.

    So traffic can be learned in many orders, or at many loads, and each prompt is read once.
    """

    mu: Floats
    sigma: Floats
    descriptions: Sequence[Description]

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        """Return one prediction for each input, in order."""
        rows = [int(each.text) for each in inputs]
        return LogTPredictions.of(self.mu[rows], self.sigma[rows], [each.cap for each in inputs])

    def describe(self, inputs: Sequence[PredictionInput]) -> tuple[LogTPredictions, list[Description]]:
        """Return one prediction and one description for each input, in order."""
        return self.predict(inputs), [self.descriptions[int(each.text)] for each in inputs]


Describe = Callable[[Sequence[PredictionInput]], tuple[Predictions, Sequence[Description]]]


def _describer(predictor: LengthPredictor) -> Describe:
    # Asked once: isinstance of a protocol takes as long as the rest of a prediction here.
    if isinstance(predictor, DescribingPredictor):
        return predictor.describe
    return lambda inputs: (predictor.predict(inputs), [_words(each.text) for each in inputs])


def _undescribed(predictor: LengthPredictor) -> Describe:
    return lambda inputs: (predictor.predict(inputs), [NOTHING] * len(inputs))


def _words(text: str) -> Description:
    words = np.array([crc32(word) for word in split(as_bytes(excerpt(text)))], np.uint32).view(np.int32)
    return Description(words_and_pairs(words), NOTHING.features)
