"""What a host has learned, as one file: saved every minute and at the end by a thread, restored at the start.

The file is a zip archive of parts that are not compressed, each with its checksum: `about.json` names the predictor,
the others are what `state()` of each learner returned. It is written beside its place and then moved there, with mode
600. A file that is damaged or newer is not used, and a disk that takes nothing is counted; either is logged once. Of
several processes with the same file all read it, and the first that saves is the one that writes it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from lengthwise.cache import cache_home
from lengthwise.errors import InputError
from lengthwise.files import atomic_path

FORMAT: Final = 1
STATE_CACHE: Final = "cache"
STATE_OFF: Final = "off"

_ABOUT: Final = "about.json"
_SUFFIX: Final = ".state"
_MAX_BYTES: Final = 4 << 30  # of all parts: a small file cannot fill the memory
_EVERY_S: Final = 60.0
_LAST_S: Final = 10.0  # for the last save, at the end

_log = logging.getLogger(__name__)


def known_state(setting: str | bool | Path) -> str:
    """Return a setting of where learned state is kept: cache, off, or the path of a folder, which need not exist."""
    if isinstance(setting, bool):  # what YAML reads `on` and `off` as
        return STATE_CACHE if setting else STATE_OFF
    if setting in (STATE_CACHE, STATE_OFF):
        return str(setting)
    folder = Path(setting).expanduser().resolve()
    if folder.exists() and not folder.is_dir():
        raise InputError("is not a folder", source=str(setting), hint="give cache, off, or a folder")
    return str(folder)


def state_file(setting: str, host: str) -> StateFile | None:
    """Return the file of a host (`gateway`, or an engine by its LLM) under a setting; None where nothing is kept."""
    if setting == STATE_OFF:
        return None
    folder = cache_home() / "state" if setting == STATE_CACHE else Path(setting)
    name = "".join(each if each.isalnum() or each in "._-" else "-" for each in host)
    return StateFile(folder / f"{name[:100]}{_SUFFIX}")


def part_name(kind: str, tenant: str | None) -> str:
    """Return the name of a part: its kind, of a tenant with its name after a slash."""
    return kind if tenant is None else f"{kind}/{tenant}"


def kind_of(name: str) -> str:
    """Return the kind of a part."""
    return name.partition("/")[0]


def tenant_of(name: str) -> str | None:
    """Return the tenant of a part; None where it is not of one."""
    return name.partition("/")[2] or None


class Kept(NamedTuple):
    """The content of a state file."""

    predictor: str = ""
    """The predictor that it was learned with, as `predictor_label` names it."""
    parts: Mapping[str, bytes] = {}


class StateFile:
    """One file of learned state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def __repr__(self) -> str:
        return f"StateFile({str(self.path)!r})"

    def read(self) -> Kept:
        """Return what the file holds; nothing where there is none, and one log line where it cannot be used."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > _MAX_BYTES:
                    raise InputError(f"unpacks to more than {_MAX_BYTES:,} bytes")
                parts = {name: archive.read(name) for name in archive.namelist()}
            about = json.loads(parts.pop(_ABOUT))
            if int(about["format"]) > FORMAT:
                raise InputError(f"has format {about['format']}, newer than {FORMAT}")
            if len(parts) != about.get("parts", len(parts)):  # the archive's directory has no checksum
                raise InputError(f"has {len(parts)} parts of {about['parts']}")
            return Kept(str(about["predictor"]), parts)
        except FileNotFoundError:
            return Kept()
        except Exception as error:  # a damaged zip file raises many kinds
            _log.warning("the learned state in %s is not used (%.300r); learning starts anew", self.path, error)
            return Kept()

    def claim(self) -> bool:
        """Whether this process may write the file: the first that asks, until it releases it or ends."""
        if self._lock is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return False
            self._lock = file
        return True

    def release(self) -> None:
        """Let another process write the file."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write(self, kept: Kept) -> None:
        """Replace the file; its folder is made, for its owner only, where it is missing."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = json.dumps({"format": FORMAT, "predictor": kept.predictor, "parts": len(kept.parts)}).encode()
        with atomic_path(self.path, mode=0o600) as new, zipfile.ZipFile(new, "w", zipfile.ZIP_STORED) as archive:
            for name, part in {_ABOUT: about, **kept.parts}.items():
                archive.writestr(name, part)


class StateSaver:
    """The thread that saves a host's state every minute in which something was learned, and at the end.

    `collect` returns the state, `learned` the number of lengths observed so far; the thread calls both.
    """

    def __init__(self, file: StateFile, collect: Callable[[], Kept], learned: Callable[[], int]) -> None:
        self.saves = 0
        self.failures = 0
        """Saves that the disk, or a learner, did not take."""
        self._file = file
        self._collect = collect
        self._learned = learned
        self._saved_at = 0  # lengths observed
        self._told = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lengthwise-state", daemon=True)
        self._thread.start()

    def save(self) -> None:
        """Save the state if something was learned since it was saved last."""
        learned = self._learned()
        if learned == self._saved_at:
            return
        try:
            if not self._file.claim():
                if not self._told:
                    self._told = True
                    _log.warning("%s is written by another process; what this one learns is not kept", self._file.path)
                return
            self._file.write(self._collect())
        except Exception as error:  # of the disk or of a learner: the host goes on
            self.failures += 1
            if self.failures == 1:
                _log.warning("what is learned is not saved to %s (%.300r); serving goes on", self._file.path, error)
        else:
            self.saves += 1
            self._saved_at = learned

    def close(self) -> None:
        """Save once more and end the thread; one whose disk hangs is left behind."""
        self._closing.set()
        self._thread.join(_LAST_S)

    def _run(self) -> None:
        while not self._closing.wait(_EVERY_S):
            self.save()
        self.save()
        self._file.release()
