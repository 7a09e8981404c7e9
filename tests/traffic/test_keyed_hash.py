from __future__ import annotations

import numpy as np

from lengthwise.traffic.keyed_hash import keyed_hashes

KEY = np.frombuffer(bytes(range(16)), np.uint64)


def test_hashes_equal_the_published_vectors_of_siphash() -> None:
    message = np.frombuffer(bytes(range(8)), np.uint64)
    expected = bytes.fromhex("6224939a79f5f593")  # vectors_sip64[8] of the reference implementation
    assert keyed_hashes(message, KEY).tobytes() == expected


def test_another_key_gives_other_hashes_and_zero_stays_zero() -> None:
    values = np.array([0, 1, 2, 2**64 - 1], np.uint64)
    first, second = keyed_hashes(values, KEY), keyed_hashes(values, KEY + np.uint64(1))
    assert first[0] == second[0] == 0
    assert not set(first[1:].tolist()) & set(second[1:].tolist())
    assert len(set(first.tolist())) == 4
