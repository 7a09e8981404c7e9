from __future__ import annotations

from pathlib import Path

import pytest

from lengthwise.cache import cache_home


@pytest.mark.parametrize(
    ("given", "user", "expected"),
    [
        ("~/mine", "/other", "HOME/mine"),
        ("/shared/cache", None, "/shared/cache"),
        (None, "/other", "/other/lengthwise"),
        (None, None, "HOME/.cache/lengthwise"),
        ("", "", "HOME/.cache/lengthwise"),
    ],
)
def test_the_cache_is_in_the_named_folder_else_in_that_of_the_user(
    monkeypatch: pytest.MonkeyPatch, given: str | None, user: str | None, expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    for name, value in (("LENGTHWISE_CACHE", given), ("XDG_CACHE_HOME", user)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert cache_home() == Path(expected.replace("HOME", "/home/ada"))
