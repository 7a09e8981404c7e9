"""Keyed hashes of hashes: without the key, a guess of the text behind them cannot be verified.

SipHash-2-4 (Aumasson, Bernstein 2012) of each value as one 8-byte message: pairs of known texts and their hashes do not
reveal the key. Compiled, since a server keys every request: the 35 hashes of a prompt of 2,000 tokens take 2.7 us, and
26 us by `hashlib.blake2b(key=)`, 6 % of the gateway's CPU time for a request (0.4 ms).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lengthwise.compiled import compiled, inlined

Hashes = NDArray[np.uint64]


@inlined
def _rotated(x: Any, bits: int) -> Any:  # a word
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@inlined
def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> tuple[Any, Any, Any, Any]:
    v0 += v1
    v2 += v3
    v1, v3 = _rotated(v1, 13) ^ v0, _rotated(v3, 16) ^ v2
    v0 = _rotated(v0, 32) + v3
    v2 += v1
    v3, v1 = _rotated(v3, 21) ^ v0, _rotated(v1, 17) ^ v2
    return v0, v1, _rotated(v2, 32), v3


@compiled
def keyed_hashes(values: Hashes, key: Hashes) -> Hashes:
    """Return the hash of each value under a key of two words; 0, which means no value, stays 0."""
    out = np.zeros(len(values), np.uint64)
    for i in range(len(values)):
        if values[i] == 0:
            continue
        v0, v1 = key[0] ^ np.uint64(0x736F6D6570736575), key[1] ^ np.uint64(0x646F72616E646F6D)
        v2, v3 = key[0] ^ np.uint64(0x6C7967656E657261), key[1] ^ np.uint64(0x7465646279746573)
        for word in (values[i], np.uint64(8 << 56)):  # the message, then its length
            v3 ^= word
            for _ in range(2):
                v0, v1, v2, v3 = _round(v0, v1, v2, v3)
            v0 ^= word
        v2 ^= np.uint64(0xFF)
        for _ in range(4):
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        out[i] = max(v0 ^ v1 ^ v2 ^ v3, np.uint64(1))
    return out
