"""What TIE's paper reports (arXiv 2604.00499), as data. Latency per token in seconds, times in seconds.

Values are those of a public summary, checked against the paper's abstract and captions. The summary marks the 8B values
of FCFS, SSJF and LTR as estimates (read off figure 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SLOTS: Final = 32
"""Their server's max_num_seqs; prefix caching was off."""
MAX_TOKENS: Final = 2048
"""The score of a request before its prediction, which is `max_tokens`."""

MAIN: Final = "LMSYS 8B"
ONLINE: Final[Mapping[str, Mapping[str, float]]] = {
    MAIN: {"fcfs": 3.17, "sjf": 1.95, "ltr": 1.55, "tie": 0.67},  # figure 4, at 100 requests/s
    "LMSYS 70B": {"fcfs": 9.08, "sjf": 5.50, "ltr": 4.34, "tie": 2.41},  # its table across data sets and LLMs
    "ShareGPT 70B": {"fcfs": 4.36, "sjf": 2.43, "ltr": 2.22, "tie": 1.41},
    "Alpaca 70B": {"fcfs": 4.52, "sjf": 2.06, "ltr": 2.36, "tie": 1.54},
}
"""Mean latency per token by workload and LLM."""

RATES: Final = (30.0, 100.0)
"""The lowest and the highest request rate of figure 4."""
GROWTH: Final[Mapping[str, float]] = {"fcfs": 7.42, "sjf": 8.55, "ltr": 6.17, "tie": 3.68}
"""Latency per token at the highest rate over that at the lowest (text on figure 4)."""

ABLATION: Final[Mapping[str, tuple[float, float]]] = {
    "full": (0.67, 0.96),
    "E only": (0.75, 1.21),
    "beta 0.1": (0.72, 1.15),
    "beta 0.3": (0.71, 1.18),
    "log-normal": (1.63, 3.37),
}
"""Mean and p90 of latency per token, LMSYS 8B online."""

SAMPLES: Final = 3000
WINDOW_S: Final = 180.0
OFFLINE: Final[Mapping[str, tuple[float, float]]] = {"ltr": (139.5, 3672.0), "tie": (98.1, 4762.0)}
"""Alpaca, 8B, all at once: seconds to 3,000 samples, samples in 3 minutes."""

WITHIN_PROMPT_CV: Final = 1.09
"""Standard deviation over mean of 100 answers to one prompt, averaged over 1,000 prompts of LMSYS-Chat-1M."""
R_SQUARED: Final = (0.82, 0.76)
"""R^2 of its predictor: of mu, and of sigma."""


def implied_capacity() -> float:
    """Requests per second at which their server would saturate, by FCFS's growth.

    Above capacity C, n requests that arrive at rate r wait n / 2 * (1 / C - 1 / r) on average, so
    the growth g from r to R is (1 / C - 1 / R) / (1 / C - 1 / r). Solved for C; service time is neglected.
    """
    low, high = RATES
    growth = GROWTH["fcfs"]
    return (growth - 1) / (growth / low - 1 / high)
