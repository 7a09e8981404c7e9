"""The file of learned state: whole or not at all, for its owner only, and never a reason not to serve."""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.predictors.state_file import Kept, StateFile, StateSaver, known_state, state_file

KEPT = Kept("fast@1", {"history": b"{}", "prefix memory": bytes(range(256)) * 40})


@pytest.fixture
def file(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path / "new" / "folder" / "gateway.state")


def test_what_is_written_is_read_again(file: StateFile) -> None:
    assert file.read() == Kept()
    file.write(KEPT)
    file.write(KEPT)
    assert file.read() == KEPT
    assert [each.name for each in file.path.parent.iterdir()] == ["gateway.state"]


def test_only_its_owner_can_read_it(file: StateFile) -> None:
    file.write(KEPT)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


@example(at=0.921875, flip=1, cut=False)  # a part that the directory loses
@given(at=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_file_is_not_used_and_logged_once(
    tmp_path_factory: pytest.TempPathFactory, at: float, flip: int, cut: bool
) -> None:
    file = StateFile(tmp_path_factory.mktemp("state") / "gateway.state")
    file.write(Kept("fast@1", {"history": bytes(1000)}))
    whole = file.path.read_bytes()
    place = int(at * len(whole))
    damaged = whole[:place] if cut else whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :]
    file.path.write_bytes(damaged)
    found = file.read()
    # A zip archive has dates and attributes that nothing depends on.
    assert found in (Kept(), Kept("fast@1", {"history": bytes(1000)}))
    if cut:
        assert found == Kept()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 nonsense"])
def test_a_file_of_something_else_is_not_used(
    file: StateFile, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(content)
    assert file.read() == Kept()
    assert len(caplog.records) == 1
    assert f"the learned state in {file.path} is not used" in caplog.text


def test_a_newer_file_is_not_used(
    file: StateFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lengthwise.predictors.state_file.FORMAT", 2)
    file.write(KEPT)
    monkeypatch.undo()
    assert file.read() == Kept()
    assert "has format 2, newer than 1" in caplog.text


class Host:
    """Counts what was learned; its state is that number."""

    learned = 0

    def collect(self) -> Kept:
        return Kept("p", {"count": str(self.learned).encode()})


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def saver(host: Host, file: StateFile) -> Iterator[StateSaver]:
    made = StateSaver(file, host.collect, lambda: host.learned)
    yield made
    made.close()


def test_it_is_saved_at_the_end_and_only_if_something_was_learned(
    host: Host, saver: StateSaver, file: StateFile
) -> None:
    saver.save()
    assert (saver.saves, file.path.exists()) == (0, False)
    host.learned = 1
    saver.save()
    saver.save()
    assert (saver.saves, file.read().parts) == (1, {"count": b"1"})
    host.learned = 2
    saver.close()
    assert (saver.saves, file.read().parts) == (2, {"count": b"2"})


def test_it_is_saved_every_minute(host: Host, file: StateFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lengthwise.predictors.state_file._EVERY_S", 0.001)
    host.learned = 1
    saver = StateSaver(file, host.collect, lambda: host.learned)
    while not saver.saves:
        pass
    assert file.read().parts == {"count": b"1"}
    saver.close()


def test_a_disk_that_takes_nothing_is_counted_and_logged_once_and_a_later_save_succeeds(
    host: Host, saver: StateSaver, file: StateFile, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = file.path.parent.parent
    blocked.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        for host.learned in (1, 2, 3):
            saver.save()
    assert (saver.saves, saver.failures, len(caplog.records)) == (0, 3, 1)
    assert f"what is learned is not saved to {file.path}" in caplog.text
    blocked.unlink()
    saver.save()
    assert (saver.saves, file.read().parts) == (1, {"count": b"3"})


def test_a_full_disk_leaves_the_last_state_as_it_was(
    host: Host, saver: StateSaver, file: StateFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.learned = 1
    saver.save()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("zipfile.ZipFile.writestr", full)
        host.learned = 2
        saver.save()
    assert (saver.saves, saver.failures, file.read().parts) == (1, 1, {"count": b"1"})
    assert sorted(each.name for each in file.path.parent.iterdir()) == ["gateway.state", "gateway.state.lock"]


def test_of_two_hosts_with_one_file_the_first_writes_it_until_it_ends(
    host: Host, saver: StateSaver, file: StateFile, caplog: pytest.LogCaptureFixture
) -> None:
    second = Host()
    other = StateSaver(StateFile(file.path), second.collect, lambda: second.learned)
    host.learned = 1
    saver.save()
    for second.learned in (5, 6):
        other.save()
    assert (other.saves, other.failures, file.read().parts) == (0, 0, {"count": b"1"})
    assert [record.message for record in caplog.records] == [
        f"{file.path} is written by another process; what this one learns is not kept"
    ]
    saver.close()
    other.close()
    assert (other.saves, file.read().parts) == (1, {"count": b"6"})


def test_a_learner_that_raises_is_a_failed_save(file: StateFile, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Kept:
        raise ValueError("no state")

    saver = StateSaver(file, broken, lambda: 1)
    saver.save()
    saver.close()
    assert (saver.saves, saver.failures, len(caplog.records)) == (0, 2, 1)


def test_the_folder_is_that_of_the_cache_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LENGTHWISE_CACHE", str(tmp_path))
    cached, named = state_file(known_state("cache"), "gateway"), state_file(known_state(tmp_path), "engine-me/M 1")
    assert cached is not None
    assert named is not None
    assert cached.path == tmp_path / "state" / "gateway.state"
    assert named.path == tmp_path / "engine-me-M-1.state"
    assert state_file(known_state("off"), "gateway") is None
    assert (known_state(False), known_state(True)) == ("off", "cache"), "as YAML reads off and on"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not a folder; give cache, off, or a folder"):
        known_state(str(tmp_path / "file"))
