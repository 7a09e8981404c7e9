from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lengthwise.training.encoder.config import parse_config
from tests.training.encoder.tiny import torch

from lengthwise.training.encoder import losses  # isort: skip
from lengthwise.training.encoder.losses import Targets  # isort: skip


def targets(lengths: list[list[float]], censored: list[list[bool]] | None = None) -> Targets:
    """Return the targets of prompts of one LLM."""
    x = torch.tensor(lengths)[:, None]
    log_std = torch.log1p(x.std(-1, correction=0))
    cut = torch.zeros(x.shape, dtype=torch.bool) if censored is None else torch.tensor(censored)[:, None]
    present, mean = x > 0, x.sum(-1) / (x > 0).sum(-1).clamp(min=1)
    known = present.any(-1)
    return Targets(
        log_lengths=torch.log(x.clamp(min=1)), present=present, censored=cut, mean=mean, log_mean=torch.log(mean),
        log_std=log_std, fitted=torch.full((*mean.shape, 2), torch.nan), weight=known.float(),
        whole=known & ~cut.any(-1),
    )  # fmt: skip


def test_student_t_and_its_gradient_match_scipy() -> None:
    t = torch.tensor([-300.0, -5.0, -1.0, 0.0, 0.5, 3.0, 50.0, 1e7], dtype=torch.float64, requires_grad=True)
    x = t.detach().numpy()
    np.testing.assert_allclose(losses.student_logsf(t).detach(), stats.t.logsf(x, 3.5), atol=1e-5)
    np.testing.assert_allclose(losses.student_logpdf(t).detach(), stats.t.logpdf(x, 3.5), atol=1e-9)
    losses.student_logsf(t).sum().backward()
    np.testing.assert_allclose(t.grad, -np.exp(stats.t.logpdf(x, 3.5) - stats.t.logsf(x, 3.5)), rtol=5e-3, atol=1e-12)


def test_a_capped_answer_contributes_its_survival_probability() -> None:
    mu, spread = torch.tensor([[5.0]]), torch.tensor([[-0.5]])
    loss = losses.negative_log_likelihood(mu, spread, targets([[100.0, 300.0]], [[False, True]]))
    scale = np.exp(-0.5)
    t = (np.log([100.0, 300.0]) - 5.0) / scale
    expected = -(stats.t.logpdf(t[0], 3.5) - np.log(scale) + stats.t.logsf(t[1], 3.5)) / 2
    assert float(loss) == pytest.approx(expected, abs=1e-4)


def test_missing_samples_are_ignored() -> None:
    mu, spread = torch.tensor([[5.0]]), torch.tensor([[-0.5]])
    both = [losses.negative_log_likelihood(mu, spread, targets(x)) for x in ([[100.0, 0.0]], [[100.0]])]
    torch.testing.assert_close(*both)


def test_the_pairwise_loss_is_lower_for_the_right_order() -> None:
    config = parse_config({"loss": {"nll": 0, "log_mean": 0, "mean": 0, "log_std": 0, "pairwise": 1}})
    true = targets([[100.0, 110.0], [500.0, 520.0], [40.0, 45.0]])

    def cost(places: list[float]) -> float:
        outputs = torch.tensor(places)[:, None, None].expand(-1, -1, 4)
        return float(losses.LOG_T.loss(outputs, true, config.loss).sum())

    assert cost([1.0, 2.0, 0.0]) < cost([0.0, 1.0, 2.0]) < cost([1.0, 0.0, 2.0])


def test_the_soft_loss_is_zero_if_the_student_equals_the_teacher() -> None:
    target = torch.tensor([[[5.0, -0.5, 5.1, 3.0], [torch.nan] * 4]])
    raw = target.clone()
    raw[..., 1] = torch.log(torch.expm1(target[..., 1] + 3.2)) - 3.2
    distance, known = losses.soft_loss(raw, target)
    assert known.tolist() == [[True, False]]
    np.testing.assert_allclose(distance, 0.0, atol=1e-6)
