from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of tiny encoders and data, written once."""
    return tmp_path_factory.mktemp("tiny")
