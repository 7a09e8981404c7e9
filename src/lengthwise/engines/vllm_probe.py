"""Whether a probe can be read inside a vLLM, by that vLLM's own configuration. Imports nothing of vLLM."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lengthwise.engines.refine import Refiner, check_fit
from lengthwise.engines.states import WORKER
from lengthwise.errors import InputError
from lengthwise.predictors.probe import load_probe

_log = logging.getLogger(__name__)


def refiner_for(options: Mapping[str, Any], config: Any, predictor: str) -> Refiner | None:  # noqa: ANN401
    """The reader of the probe that the plug-in's options name; None where they name none.

    InputError where this vLLM would not hand over states, or not the probe's: nothing is more easily predicted than a
    number from a probe of another LLM.
    """
    name = options.get("probe")
    if name is None:
        return None
    model, parallel = config.model_config, config.parallel_config
    probe = load_probe(name)
    check_fit(
        probe,
        [str(model.model), str(model.served_model_name)],
        hidden_size=int(model.get_hidden_size()),
        layers=int(model.get_total_num_hidden_layers()),
    )
    if str(parallel.worker_cls).startswith(("auto", "vllm.")):
        hint = f"add --worker-cls {WORKER}"
        raise InputError("vLLM's own worker hands over no hidden states", field="probe", hint=hint)
    if not model.enforce_eager:
        raise InputError("compiled layers cannot be looked into", field="probe", hint="add --enforce-eager")
    against = {
        "speculative decoding, whose last token may be taken back": config.speculative_config is not None,
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "lengths that are forced (`plays`), of which the LLM knows nothing": options.get("plays") is not None,
    }
    for what, there in against.items():
        if there:
            raise InputError(f"a probe is not read with {what}", field="probe", hint="leave out one of them")
    beside = probe.card.get("predictor")
    if beside and beside != Path(predictor).stem:
        _log.warning("the probe learned with '%s' as the predictor, and is told what '%s' predicts", beside, predictor)
    _log.info("predictions are refined every %d tokens by the probe '%s', layer %d", probe.every, name, probe.layer)
    return Refiner(probe)
