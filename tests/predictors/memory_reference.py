"""A readable prefix memory: an unbounded dictionary of nodes with Python floats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lengthwise.lengths.log_t import beyond
from lengthwise.predictors.history import FAST_MEMORY, MEMORY
from lengthwise.predictors.memory_kernel import CLASSES, STRENGTHS

NU = 3.5
KEEP = 1 - 1 / FAST_MEMORY

Scope = tuple[str, object]
"""The kind of a scope, and what identifies it."""


@dataclass
class Node:
    """Decayed weights, means and sums of squared deviations of y and of the text predictor's m."""

    weight: float = 0.0
    y: float = 0.0
    yy: float = 0.0
    m_weight: float = 0.0
    m: float = 0.0
    mm: float = 0.0
    ym: float = 0.0
    observed: list[int] = field(default_factory=list)

    def update(self, y: float, m: float | None, weight: float, spread: float, number: int) -> None:
        before, self.weight = KEEP * self.weight, KEEP * self.weight + weight
        step = y - self.y
        self.y += weight / self.weight * step
        self.yy = KEEP * self.yy + weight * before / self.weight * step**2 + spread
        if m is not None:
            before, self.m_weight = KEEP * self.m_weight, KEEP * self.m_weight + weight
            m_step = m - self.m
            self.m += weight / self.m_weight * m_step
            self.mm = KEEP * self.mm + weight * before / self.m_weight * m_step**2
            self.ym = KEEP * self.ym + weight * before / self.m_weight * step * m_step
        self.observed.append(number)


class ReferenceMemory:
    """The model that the docstring of `prefix_memory` states."""

    def __init__(self, *, text: bool) -> None:
        self.text = text
        self.nodes: dict[Scope, Node] = {}
        self.scores: dict[str, list[float]] = {}
        self.scales = [[1.0, 20.0] for _ in range(CLASSES)]
        self.observations = 0

    def predict(self, scopes: Sequence[Scope], mu: float, sigma: float) -> tuple[float, float]:
        location, scale, evidence = self._descend(scopes, mu, sigma)
        return max(0.0, location), scale * self.scales[evidence][0]

    def observe(self, scopes: Sequence[Scope], mu: float, sigma: float, y: float, *, censored: bool) -> None:
        location, scale, evidence = self._descend(scopes, mu, sigma)
        scale *= self.scales[evidence][0]
        z, spread = (y - location) / scale, 0.0
        if censored:
            weight, mean, spread = map(float, beyond(z))
            z, y = mean, location + scale * mean
        else:
            weight = (NU + 1) / (NU + z * z)
            self._descend(scopes, mu, sigma, learn_from=(y, scale))
        factor, seen = self.scales[evidence]
        self.scales[evidence] = [
            factor * math.sqrt(1 + (weight * z * z + spread - 1) / seen),
            min(seen + 1, MEMORY),
        ]
        self.observations += 1
        for scope in scopes:
            node = self.nodes.setdefault(scope, Node())
            node.update(y, mu if self.text else None, weight, spread * scale**2, self.observations)

    def _descend(
        self, scopes: Sequence[Scope], mu: float, sigma: float, learn_from: tuple[float, float] | None = None
    ) -> tuple[float, float, int]:
        known = [(kind, self.nodes[kind, name]) for kind, name in scopes if (kind, name) in self.nodes]
        distinct = [
            (kind, node)
            for place, (kind, node) in enumerate(known)
            if place + 1 == len(known) or node.observed != known[place + 1][1].observed
        ]
        location, variance, slope = mu, sigma**2, 1.0
        for kind, node in distinct:
            own, squares = node.y, node.yy
            if self.text:
                slope = (node.ym + 8 * slope) / (node.mm + 8)
                own += slope * (mu - node.m)
                squares = max(0.0, squares - 2 * slope * node.ym + slope**2 * node.mm)
            step = own - location
            prior = [-abs(math.log(k / (1000.0 if self.text else 1.0))) for k in STRENGTHS]
            scores = self.scores.setdefault(kind, list(prior))
            if learn_from is not None:
                y, unit = learn_from
                for place, k in enumerate(STRENGTHS):
                    z = (y - location - node.weight / (node.weight + k) * step) / unit
                    kept = 0.999 * scores[place] + 0.001 * prior[place]
                    scores[place] = kept - (NU + 1) / 2 * math.log1p(z * z / NU)
            shares = np.exp(np.array(scores) - max(scores))
            location += step * sum(
                share * node.weight / (node.weight + k)
                for share, k in zip((shares / shares.sum()).tolist(), STRENGTHS, strict=True)
            )
            variance = (3 * variance + squares) / (3 + node.weight)
        return location, max(0.02, math.sqrt(variance)), min(len(distinct), CLASSES - 1)
