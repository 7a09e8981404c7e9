"""From a published encoder to the smaller one that is trained: fewer layers, a funnel, another activation.

Runs where there is nothing but torch and NumPy, on settings that are any object with these names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lengthwise.errors import InputError
from lengthwise.training.encoder.bert import Bert

if TYPE_CHECKING:
    from lengthwise.training.encoder.config import TrainingConfig


def reshape(backbone: Any, config: TrainingConfig) -> None:  # noqa: ANN401  (an encoder of any kind)
    """Change the encoder in place. Weights stay: call it after loading those of the whole encoder."""
    if config.layers is not None:
        backbone.keep_layers(config.layers)
    if not isinstance(backbone, Bert):
        changed = [name for name in ("funnel", "activation") if getattr(config, name) is not None]
        if changed:
            raise InputError("only a BERT can be changed so", field=changed[0], hint="leave it out")
        return
    if config.activation is not None:
        backbone.set_activation(config.activation)
    if config.funnel is not None:
        if config.funnel.after >= len(backbone.layers):
            hint = f"the encoder has {len(backbone.layers)} layers; give less"
            raise InputError("no layer is left after the funnel", field="funnel.after", hint=hint)
        backbone.funnel = (config.funnel.after, config.funnel.stride)
