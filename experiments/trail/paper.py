"""What TRAIL says of itself (arXiv 2410.01035 and its poster), to set ours beside."""

from __future__ import annotations

from typing import Final

RATE: Final = 14.0
"""Requests per second at which the poster shows mean latency and TTFT over c."""
C: Final = 0.8
MOST_TOKENS: Final = 512
"""Of an answer: the probe's bins end there."""
LATENCY_GAIN: Final = (1.66, 2.01)
"""FCFS (vLLM) over TRAIL, mean latency: least and most over the rates tried. One A100, Alpaca, 10,000 prompts."""
TTFT_GAIN: Final = (1.76, 24.07)
ERROR_RATIO: Final = 2.66
"""Error of the prediction from the prompt (BERT) over that of the probe, Llama-3-8B."""
