from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lengthwise.errors import InputError
from lengthwise.gateway.keys import add_key, key_hash, read_keys, remove_keys


def test_the_file_holds_a_hash_and_never_the_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "team-a", {"requests_per_minute": 600})
    assert key.startswith("lw-")
    assert len(key) >= 43
    assert key not in file.read_text()
    (tenant,) = read_keys(file).tenants
    assert (tenant.name, tenant.requests_per_minute) == ("team-a", 600)
    assert tenant.keys[0].sha256 == key_hash(key.encode()).hex()


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    add_key(tmp_path / "keys.json", "team-a", {})
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600


def test_a_second_key_keeps_the_first_and_the_limits_that_are_not_given(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    add_key(file, "team-a", {"requests_per_minute": 600, "weight": 2})
    add_key(file, "team-a", {"requests_per_minute": 60})
    (tenant,) = read_keys(file).tenants
    assert (len(tenant.keys), tenant.requests_per_minute, tenant.weight) == (2, 60, 2)


def test_keys_are_removed_by_id_or_with_their_tenant(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    for _ in range(2):
        add_key(file, "team-a", {})
    add_key(file, "team-b", {})
    first, second = read_keys(file).tenants[0].keys
    assert remove_keys(file, first.id) == [first.id]
    assert [key.id for key in read_keys(file).tenants[0].keys] == [second.id]
    assert remove_keys(file, "team-a") == [second.id]
    assert [tenant.name for tenant in read_keys(file).tenants] == ["team-b"]
    with pytest.raises(InputError, match="there is no tenant or key 'team-a'"):
        remove_keys(file, "team-a")


def test_keys_that_are_added_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: add_key(file, f"team-{number}", {}), range(24)))
    assert len(read_keys(file).tenants) == 24


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a keys file"),
        ('{"version": 2}', "field 'version'"),
        ('{"tenants": [{"name": "a", "keys": [{"sha256": "x", "created": 0}]}]}', "field 'tenants.0.keys.0.sha256'"),
    ],
)
def test_an_invalid_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_keys(file)


def test_a_failed_change_leaves_the_file_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    add_key(file, "team-a", {})
    before = file.read_text()
    with pytest.raises(ValueError, match="requests_per_minute"):
        add_key(file, "team-b", {"requests_per_minute": -1})
    assert file.read_text() == before
    assert json.loads(before)["tenants"][0]["name"] == "team-a"
    assert [path.name for path in tmp_path.iterdir()] == ["keys.json"]
