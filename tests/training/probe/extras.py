"""Skip tests of training and collecting if torch or transformers is missing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")
transformers = pytest.importorskip("transformers", reason="transformers is an extra")
