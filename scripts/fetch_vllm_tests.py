"""Fetch vLLM's scheduler tests: `python scripts/fetch_vllm_tests.py FOLDER [RELEASE ...]`, by default the pinned one.

`sglang-0.5.23` as a release fetches the sources of SGLang that `tests/client/test_sglang_contract.py` reads.

They are in the release's source distribution, and so are the sources that `lengthwise.vllm.contract` reads. pip does
not download that without building it, so the file is fetched from pip's index and checked against its hash. Only tests
and those sources are unpacked; they are never committed.
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from pathlib import Path
from urllib.parse import urljoin

from pip._internal.models.index import PyPI

PINNED = "0.32.0"
_KEPT = (
    r"vllm-[^/]+/(tests/|pyproject|vllm/(v1|utils|tokenizers)/.*\.py|vllm/sampling_params\.py"
    r"|vllm/model_executor/models/interfaces\.py)"
)
_KEPT_OF_SGLANG = r"sglang/srt/(managers|entrypoints|observability)/.*\.py"


def index_url() -> str:
    """Return the index that pip uses."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (our own command)
    return (result.stdout.strip() or str(PyPI.simple_url)).rstrip("/")


def get(url: str, accept: str = "*/*") -> bytes:
    """Return the index's response."""
    request = urllib.request.Request(url, headers={"Accept": accept})  # noqa: S310  (pip's own index)
    with urllib.request.urlopen(request, timeout=300) as response:  # noqa: S310
        return bytes(response.read())


def source_distribution(release: str) -> bytes:
    """Return a release's source distribution, checked against the hash of the index."""
    page = f"{index_url()}/vllm/"
    found = re.search(
        rf'href="([^"]*vllm-{re.escape(release)}\.tar\.gz)#sha256=([0-9a-f]+)"', get(page, "text/html").decode()
    )
    if found is None:
        sys.exit(f"the index lists no source distribution of vllm {release}")
    data = get(urljoin(page, found[1]))
    if hashlib.sha256(data).hexdigest() != found[2]:
        sys.exit("the download does not match the index's hash; try again")
    return data


def fetch_sglang(folder: Path, release: str) -> None:
    """Unpack the sources of SGLang's server from its wheel."""
    with tempfile.TemporaryDirectory() as work:
        wheel = ["--no-deps", "--only-binary=:all:", "--dest", work, f"sglang=={release}"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *wheel]
        subprocess.run(command, check=True)  # noqa: S603  (our own command)
        with zipfile.ZipFile(next(Path(work).glob("*.whl"))) as archive:
            kept = [name for name in archive.namelist() if re.match(_KEPT_OF_SGLANG, name)]
            archive.extractall(folder, kept)  # noqa: S202  (a wheel that pip has checked)


def main() -> None:
    """Fetch and unpack the tests."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for release in sys.argv[2:] or [PINNED]:
        if release.startswith("sglang-"):
            fetch_sglang(folder / release, release.removeprefix("sglang-"))
            continue
        with tarfile.open(fileobj=io.BytesIO(source_distribution(release))) as archive:
            kept = [member for member in archive.getmembers() if re.match(_KEPT, member.name)]
            archive.extractall(folder, members=kept, filter="data")
        print(folder / f"vllm-{release}")  # noqa: T201


if __name__ == "__main__":
    main()
