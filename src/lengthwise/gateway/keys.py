"""The keys file: API keys by tenant, of which only SHA-256 hashes are stored.

A key has 256 random bits, so a plain hash of it cannot be inverted by trying; salt and slow hashing, which protect
passwords, are not needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lengthwise.errors import InputError
from lengthwise.files import atomic_path
from lengthwise.gateway.config import TenantConfig

_PREFIX = "lw-"
_ID_DIGITS = 12


class StoredKey(BaseModel):
    """The hash of a key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    created: datetime

    @property
    def id(self) -> str:
        """The first digits of the hash, which name the key in lists and logs."""
        return self.sha256[:_ID_DIGITS]


class StoredTenant(TenantConfig):
    """A tenant and its keys."""

    keys: tuple[StoredKey, ...] = ()


class KeysFile(BaseModel):
    """The content of a keys file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    tenants: tuple[StoredTenant, ...] = ()


def key_hash(key: bytes) -> bytes:
    """Return the SHA-256 hash of a key."""
    return hashlib.sha256(key).digest()


def read_keys(path: Path) -> KeysFile:
    """Read a keys file; an InputError names what is wrong."""
    try:
        return KeysFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise InputError("no such file", source=path, hint=f"run: lengthwise keys add TENANT --keys {path}") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=path) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or None
        raise InputError(f"is not a keys file: {first['msg']}", source=path, field=field) from None


def add_key(path: Path, tenant: str, settings: Mapping[str, Any]) -> str:
    """Add a key of a tenant, new or known, with these settings of its TenantConfig; return the key."""
    key = _PREFIX + secrets.token_urlsafe(32)
    stored = StoredKey(sha256=key_hash(key.encode()).hex(), created=datetime.now(UTC).replace(microsecond=0))
    with _changing(path) as tenants:
        known = tenants.get(tenant, StoredTenant(name=tenant))
        fields = {**known.model_dump(exclude_unset=True, exclude={"keys"}), **settings}
        tenants[tenant] = StoredTenant(**fields, keys=(*known.keys, stored))
    return key


def remove_keys(path: Path, name: str) -> list[str]:
    """Remove a tenant with all its keys, or the key with this id; return the ids of the removed keys."""
    with _changing(path, create=False) as tenants:
        if name in tenants:
            return [key.id for key in tenants.pop(name).keys]
        for tenant in tenants.values():
            if any(key.id == name for key in tenant.keys):
                kept = tuple(key for key in tenant.keys if key.id != name)
                tenants[tenant.name] = tenant.model_copy(update={"keys": kept})
                return [name]
        raise InputError(f"there is no tenant or key '{name}'", source=path, hint="see: lengthwise keys list")


@contextmanager
def _changing(path: Path, *, create: bool = True) -> Iterator[dict[str, StoredTenant]]:
    """Yield the tenants to change, and write them; only one process at a time."""
    if not path.absolute().parent.is_dir():
        raise InputError("no such folder", source=path.parent, hint="create it, or choose another --keys")
    folder = os.open(path.absolute().parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        known = KeysFile() if create and not path.exists() else read_keys(path)
        tenants = {tenant.name: tenant for tenant in known.tenants}
        yield tenants
        text = KeysFile(tenants=tuple(tenants.values())).model_dump_json(indent=2, exclude_defaults=True)
        with atomic_path(path, mode=0o600) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
    finally:
        os.close(folder)
