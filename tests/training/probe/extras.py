"""What training and collecting need, which is not installed everywhere."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")
transformers = pytest.importorskip("transformers", reason="transformers is an extra")
