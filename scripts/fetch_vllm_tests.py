"""Fetch vLLM's scheduler tests: `python scripts/fetch_vllm_tests.py FOLDER`.

They are in the source distribution of the release that the plug-in supports. pip does not download that without
building it, so the file is fetched from pip's index and checked against its hash. Only the tests are unpacked; they are
never committed.
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

from pip._internal.models.index import PyPI

RELEASE = "0.32.0"


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


def source_distribution() -> bytes:
    """Return the release's source distribution, checked against the hash of the index."""
    page = f"{index_url()}/vllm/"
    found = re.search(
        rf'href="([^"]*vllm-{re.escape(RELEASE)}\.tar\.gz)#sha256=([0-9a-f]+)"', get(page, "text/html").decode()
    )
    if found is None:
        sys.exit(f"the index lists no source distribution of vllm {RELEASE}")
    data = get(urljoin(page, found[1]))
    if hashlib.sha256(data).hexdigest() != found[2]:
        sys.exit("the download does not match the index's hash; try again")
    return data


def main() -> None:
    """Fetch and unpack the tests."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(source_distribution())) as archive:
        tests = [m for m in archive.getmembers() if re.match(r"vllm-[^/]+/(tests/|pyproject)", m.name)]
        archive.extractall(folder, members=tests, filter="data")
    print(folder / f"vllm-{RELEASE}")  # noqa: T201


if __name__ == "__main__":
    main()
