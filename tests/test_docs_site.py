"""The documentation builds as a site without broken links, and loads nothing from another host."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lengthwise
from lengthwise.cli import COMMANDS
from lengthwise.gateway.config import GatewayConfig
from scripts import docs_pages

ROOT = Path(__file__).parents[1]
# Asks the search of the built site (its own worker) in Node and prints the pages that it finds, best first.
SEARCH = """
const fs = require('fs'), vm = require('vm'), [site, question] = process.argv.slice(1);
const folder = site + '/assets/javascripts/workers/';
const worker = folder + fs.readdirSync(folder).find(name => /^search.*\\.js$/.test(name));
let handle, answered;
const self = { addEventListener: (_, handler) => { handle = handler }, postMessage: message => answered(message),
               console, setTimeout, URL };
self.self = self;
vm.runInNewContext(fs.readFileSync(worker, 'utf8'), self);
const ask = (type, data) => new Promise(resolve => { answered = resolve; handle({ data: { type, data } }) });
const index = { ...JSON.parse(fs.readFileSync(site + '/search/search_index.json', 'utf8')), options: {} };
ask(0, index).then(() => ask(2, question)).then(
  ({ data }) => console.log(JSON.stringify(data.items.map(group => group[0].location.split('#')[0]))));
"""
# What a browser loads by itself, unlike a link that a reader follows.
LOADED = re.compile(r"<(?:script|link|img|iframe|source|video|object)\b[^>]*?\b(?:src|href|data)=[\"']?([^\"' >]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    folder = tmp_path_factory.mktemp("site")
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 0, build.stderr
    return folder


def test_the_pages_load_no_file_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        for address in LOADED.findall(page.read_text(encoding="utf-8")):
            assert not re.match(r"(?:\w+:)?//", address), f"{page.relative_to(site)} loads {address}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\([\"']?|@import\s+[\"'])(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


@pytest.mark.parametrize(
    ("question", "page"),
    [("starvation", "faq/"), ("rate limit", "guides/security/"), ("overhead", "guides/gateway/")],
)
def test_the_search_finds_the_page_for_a_question_first(site: Path, question: str, page: str) -> None:
    if (node := shutil.which("node")) is None:
        pytest.skip("needs Node")
    command = [node, "-e", SEARCH, str(site), question]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found[0] == page, found[:3]


def test_every_page_of_docs_is_in_the_site_and_can_be_searched(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    searchable = {entry["location"].partition("#")[0].rstrip("/") or "index" for entry in entries}
    assert pages <= searchable


@pytest.mark.parametrize("name", docs_pages.made_pages())
def test_a_page_that_is_made_from_the_code_is_current(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "37")  # neither the terminal nor the user's folder counts
    monkeypatch.setenv("HOME", "/nowhere")
    made = docs_pages.made_pages()[name]()
    stored = (docs_pages.DOCS / name).read_text(encoding="utf-8")
    assert stored == made, f"docs/{name} is not what the code says; run: python -m scripts.docs_pages"


def test_every_public_name_has_its_docstring_in_the_python_reference() -> None:
    page = docs_pages.python_page()
    for name in set(lengthwise.__all__) - {"__version__"}:
        first = (getattr(lengthwise, name).__doc__ or "").partition("\n")[0]
        section = page.partition(f"\n### {name}\n")[2].partition("\n#")[0]
        assert first, name
        assert first in section.replace("\\*", "*"), name


def test_the_command_line_reference_has_every_command_and_the_options_of_its_help() -> None:
    page = docs_pages.cli_page()
    for name in COMMANDS:
        assert f"\n## lengthwise {name}\n" in page
    assert "| `--max-num-seqs` |" in page
    assert "### lengthwise keys add" in page


def test_the_configuration_reference_describes_every_field_of_the_gateway() -> None:
    page = docs_pages.configuration_page()
    for name, field in GatewayConfig.model_fields.items():
        assert field.description, name
        assert f"| `{name}` |" in page


def test_a_docstring_as_markdown_links_pages_and_escapes_stars_between_words() -> None:
    text = 'See docs/guides/security.md#on-the-internet: "2*a,1*b" is `2*a`.\n\n    key = 2*a'
    expected = 'See [security](../guides/security.md#on-the-internet): "2\\*a,1\\*b" is `2*a`.\n\n    key = 2*a'
    assert docs_pages._text(text) == expected


def test_links_of_a_file_at_the_root_point_into_the_site() -> None:
    text = "[a](docs/guides/engine.md) [b](CONTRIBUTING.md) [c](src/x.py) [d](https://semver.org)"
    expected = "[a](../guides/engine.md) [b](contributing.md) c [d](https://semver.org)"
    assert docs_pages._links_of_root(text) == expected
