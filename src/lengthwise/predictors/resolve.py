"""Predictors by name: one parser and one resolver for the simulator, the gateway, the vLLM plug-in and every command.

fast, default, rank        a packaged predictor
my_model.lw                a model file (any name that ends in .lw or has a folder in it)
history                    the LLM's past lengths only
memory, memory+fast        prefix memory: past lengths behind the same prefix, session or tenant, over `history` or
                           over another predictor
fast+learn                 another predictor that learns from every finished answer; also memory+fast+learn
none                       no prediction: the wide prior
constant, constant-corpus  one prediction per LLM (and corpus), fitted to other rows of the evaluated data set
ask:URL                    ask the LLM behind an OpenAI-compatible server how long its answer will be
oracle, noisy:0.6          the true lengths, or the true lengths with noise (Kendall's tau 0.6; noisy:log=0.5 gives
                           the spread of the log error); only where true lengths are known, as in a simulation
probe                      the true lengths with the error of a probe's first reading; only as `--refresh`
my_package.module:MyClass  a dotted path to a LengthPredictor
NAME                       an entry point of the group `lengthwise.predictors`
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

from lengthwise.defaults import DEFAULT_PREDICTOR
from lengthwise.errors import InputError, require_kind
from lengthwise.llm_names import UNKNOWN
from lengthwise.predictors.contract import LengthPredictor, LoadedPredictor
from lengthwise.predictors.model_file import ADAPTED, LEARNED, SHARES, SUFFIX, ModelFile, part_sums, read_model_file
from lengthwise.specs import Spec, find, parse_spec, unknown_name

Kind = Literal[
    "oracle",
    "none",
    "noisy",
    "probe",
    "history",
    "constant",
    "constant-corpus",
    "ask",
    "memory",
    "learn",
    "model",
    "plugin",
]
Floats = NDArray[np.float64]

MODELS: Final = Path(str(resources.files("lengthwise.predictors"))) / "models"
"""The packaged model files: predictors, and the probe of the embedded LLM."""

_TRIAL: Final = "Why is the sky blue?"

_PLAIN: Final[tuple[Kind, ...]] = ("oracle", "none", "probe", "history", "constant", "constant-corpus")
_MEMORY: Final = "memory"
_LEARN: Final = "learn"
_BELOW_MEMORY: Final = ("model", "ask", "plugin")
_NEED_TRUTH: Final = ("oracle", "noisy")
CONSTANTS: Final = ("constant", "constant-corpus")
"""Predictors that an evaluation fits to other rows of its data set."""


@dataclass(frozen=True, slots=True)
class PredictorSpec:
    """A parsed predictor name.

    `model` is the packaged name, file, URL or plug-in spec where the kind has one; of `memory` and `learn` the other
    predictor. `memory`: one that learns has prefix memory, too.
    """

    kind: Kind
    tau: float | None = None
    log_error: float | None = None
    model: str | None = None
    memory: bool = False

    @property
    def learns(self) -> bool:
        """Whether predictions depend on the lengths of finished answers."""
        return self.kind in (_MEMORY, _LEARN)


def parse_predictor_spec(text: str) -> PredictorSpec:
    """Parse a predictor's name; an unknown one is an InputError with the closest match."""
    name = text.strip()
    if (learner := _parse_learner(name)) is not None:
        return learner
    if name.lower().startswith("ask:"):
        return PredictorSpec("ask", model=name[4:])
    if (memory := _parse_memory(name)) is not None:
        return memory
    if _is_file(name):
        return PredictorSpec("model", model=name)
    spec = parse_spec(name, "predictor")
    kind = spec.name.lower()
    if kind == "noisy":
        return _parse_noisy(spec, text)
    bare = spec == Spec(spec.name)
    for plain in _PLAIN:
        if kind == plain and bare:
            return PredictorSpec(plain)
    packaged = packaged_predictors()
    if kind in packaged and bare:
        return PredictorSpec("model", model=kind)
    known = [*_PLAIN, _MEMORY, "noisy:TAU", "noisy:log=SPREAD", "ask:URL", "NAME+learn", *packaged]
    if kind in (*_PLAIN, *packaged):
        raise unknown_name(name, "predictor", known)
    find(spec, "predictor", dict.fromkeys(known))
    return PredictorSpec("plugin", model=name)


def resolve_predictor(predictor: str | Path | PredictorSpec | LengthPredictor) -> LengthPredictor:
    """Return the predictor that a name, a parsed name or a model file means; a predictor object is returned as it is.

    `oracle`, `noisy`, `probe` and `none` are an InputError here: they are columns of a workload, not functions of a
    request.
    """
    if isinstance(predictor, Path):
        return load_predictor(predictor)
    if not isinstance(predictor, str | PredictorSpec):
        return _checked(predictor, type(predictor).__name__)
    spec = parse_predictor_spec(predictor) if isinstance(predictor, str) else predictor
    if spec.kind == "model":
        return load_predictor(str(spec.model))
    if spec.kind in CONSTANTS:
        raise InputError(
            f"no rows to fit '{spec.kind}' to",
            hint="give a source with other splits than the evaluated one, or another split",
        )
    if spec.kind == "plugin":
        return _plugin(spec)
    if spec.kind == _MEMORY and spec.model is None:
        from lengthwise.predictors.prefix_memory import MemoryPredictor

        return MemoryPredictor()
    if spec.learns:
        from lengthwise.predictors.learner import Learner

        text = resolve_predictor(str(spec.model))
        return Learner(text, learning=spec.kind == _LEARN, memory=spec.memory or spec.kind == _MEMORY)
    if spec.kind == "ask":
        from lengthwise.predictors.ask import AskPredictor

        return AskPredictor(str(spec.model))
    if spec.kind == "history":
        from lengthwise.predictors.history import History

        return History()
    if spec.kind == "probe":
        raise after_prefill_only()
    needs = "needs the true lengths" if spec.kind in _NEED_TRUTH else "predicts nothing"
    raise InputError(f"predictor '{spec.kind}' {needs}", hint="use it in a simulation, or give fast, default or a file")


def after_prefill_only() -> InputError:
    """Return the error of a probe where no prompt has been computed yet."""
    hint = "give it to --refresh, with --disaggregate; in vLLM, `lengthwise engine --probe default`"
    return InputError("predictor 'probe' reads a hidden state of the LLM, which exists after prefill", hint=hint)


def load_predictor(name: str | Path) -> LoadedPredictor:
    """Load a packaged predictor by name, or one from a model file.

    A string that ends in .lw or has a folder in it is a file; anything else is a name. With `+learn` behind it, it
    learns from the answers that it observes. No network, no torch. The file is tried on one prompt: InputError if its
    parts do not fit together.
    """
    if isinstance(name, str) and _parse_learner(name) is not None:
        return cast("LoadedPredictor", resolve_predictor(name))
    path = model_path(name)
    file = read_model_file(path)
    loaded = _load(file, path)
    if ADAPTED in file.parts:
        from lengthwise.predictors import mixture  # loads SciPy's optimisers

        loaded = mixture.AdaptedPredictor(loaded, mixture.from_part(file.part(ADAPTED), loaded.llms, path), file.card)
    if LEARNED in file.parts:
        from lengthwise.predictors.learner import LearnedPredictor  # brings the compiler

        loaded = LearnedPredictor(loaded, file.part(LEARNED), file.card)
    _check_predicts(loaded, path)
    return loaded


def _check_predicts(loaded: LoadedPredictor, path: Path) -> None:
    """Predict one prompt for an LLM that it knows and for an unknown one; InputError where that fails."""
    cause: Exception | None = None
    try:
        found = loaded.predict([_TRIAL] * 2, [(*loaded.llms, UNKNOWN)[0], UNKNOWN])
        fits = all(math.isfinite(found[row].mean()) for row in range(2))
    except Exception as error:  # a file may hold numbers and arrays of any kind
        fits, cause = False, error
    if not fits:
        raise InputError("its parts do not fit together", source=path, hint="get the file again") from cause


def _load(file: ModelFile, path: Path) -> LoadedPredictor:
    """Load by the kind that a model file states, importing only what that kind needs."""
    if file.kind == "fast":
        from lengthwise.predictors.fast import load_fast

        return load_fast(_with_shared(file, path), path)
    if file.kind == "encoder":
        from lengthwise.predictors.encoder import EncoderPredictor

        return EncoderPredictor.load(file, path)
    kind, hint = file.kind, "known: encoder, fast"
    raise InputError(f"holds a predictor of kind '{kind}'", source=path, field="kind", hint=hint)


def _with_shared(file: ModelFile, path: Path) -> ModelFile:
    """Return the file with the parts that its card says it shares with a packaged one."""
    if SHARES not in file.card:
        return file
    try:
        of, sums = str(file.card[SHARES]["of"]), dict(file.card[SHARES]["sha256"])
        lender = read_model_file(packaged_predictors()[of])
        parts = {name: lender.parts[name] for name in sums}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("shares parts that are not packaged", source=path, hint="get the file again") from error
    if part_sums(parts) != sums:
        raise InputError(
            f"was trained with the words of another '{of}'", source=path, hint="train it again with this version"
        )
    return replace(file, parts={**parts, **file.parts})


def packaged_predictors() -> dict[str, Path]:
    """Return the model files of the packaged predictors, by name."""
    return {path.stem: path for path in sorted(MODELS.glob(f"*{SUFFIX}")) if path.stem != "probe"}


def predictor_label(name: str | Path) -> str:
    """Return a predictor's name for logs; that of a model file has its digest, which tells versions apart."""
    if isinstance(name, str) and parse_predictor_spec(name).kind != "model":
        return name
    path = model_path(name)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{path.stem}@{digest[:8]}"


def best_packaged() -> str:
    """Return `default` where it is packaged, else `fast`."""
    return "default" if "default" in packaged_predictors() else DEFAULT_PREDICTOR


def model_path(name: str | Path) -> Path:
    """Return the path of a packaged predictor's file, or of the named file."""
    require_kind(name, (str, Path), "predictor", 'a name such as "fast", or a model file')
    if isinstance(name, Path) or _is_file(name):
        return Path(name)
    packaged = packaged_predictors()
    if name not in packaged:
        raise InputError(
            f"predictor '{name}' is not known", hint=f"one of: {', '.join(packaged) or 'none'}; or a model file"
        )
    return packaged[name]


def _is_file(name: str) -> bool:
    return name.endswith(SUFFIX) or len(Path(name).parts) > 1


def _parse_memory(name: str) -> PredictorSpec | None:
    kind, plus, other = name.partition("+")
    if kind.strip().lower() != _MEMORY:
        return None
    if not plus:
        return PredictorSpec("memory")
    below = parse_predictor_spec(other)
    if below.kind == "history":
        return PredictorSpec("memory")
    if below.kind not in _BELOW_MEMORY:
        raise InputError(
            f"no prefix memory over '{other.strip()}'",
            hint="give memory, or memory+fast, memory+default or memory+FILE",
        )
    return PredictorSpec("memory", model=other.strip())


def _parse_learner(name: str) -> PredictorSpec | None:
    other, plus, last = name.rpartition("+")
    if not plus or last.strip().lower() != _LEARN:
        return None
    below = parse_predictor_spec(other)
    if below.kind == _MEMORY and below.model is not None:
        return PredictorSpec(_LEARN, model=below.model, memory=True)
    if below.kind not in _BELOW_MEMORY:
        raise InputError(
            f"nothing to learn over '{other.strip()}'",
            hint="give fast+learn, default+learn, FILE+learn or memory+fast+learn",
        )
    return PredictorSpec(_LEARN, model=other.strip())


def _parse_noisy(spec: Spec, text: str) -> PredictorSpec:
    given = dict(spec.parameters)
    tau = spec.value if spec.value is not None else given.pop("tau", None)
    log_error = given.pop("log", None)
    if not given and spec.attribute is None and (tau is None) != (log_error is None):
        if isinstance(tau, float) and 0.0 < tau <= 1.0:
            return PredictorSpec("noisy", tau=tau)
        if isinstance(log_error, float) and 0.0 <= log_error <= 10.0:
            return PredictorSpec("noisy", log_error=log_error)
    raise InputError(
        f"'{text}' does not state the noise", hint="give noisy:0.6 for a Kendall's tau above 0, or noisy:log=0.5"
    )


def _plugin(spec: PredictorSpec) -> LengthPredictor:
    parsed = parse_spec(str(spec.model), "predictor")
    found: Any = find(parsed, "predictor", {})
    if isinstance(found, type):
        try:
            found = found(**parsed.parameters)
        except TypeError as error:
            raise InputError(f"predictor {parsed.base} cannot be made: {error}") from error
    return _checked(found, parsed.base)


def _checked(predictor: object, name: str) -> LengthPredictor:
    if not isinstance(predictor, LengthPredictor):
        raise InputError(f"'{name}' is not a predictor", hint="it needs predict(inputs), as LengthPredictor states")
    return predictor
