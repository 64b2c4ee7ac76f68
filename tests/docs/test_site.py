"""The site of the documentation builds without a warning, searches without another host, and has what the code has."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT

BUILD = ROOT / "docs" / "site" / "build.py"
BROWSER = ROOT / "clients" / "page"
SEEN = ("index.html", "install.html", "first-hour.html", "metrics.html", "reference/commands.html")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, str(BUILD), str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    assert built.returncode == 0, (built.stdout + built.stderr)[-4000:]
    assert "No issues found" in built.stdout + built.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_there_and_loads_nothing_from_elsewhere(site: Path) -> None:
    html = list((site / "html").rglob("*.html"))
    assert len(html) > len(PAGES)
    foreign = r'<(?:script|img|iframe)[^>]*src="?https?:|<link[^>]*rel="?(?:stylesheet|preconnect)"?[^>]*href="?https?:'
    assert [path.name for path in html if re.search(foreign, path.read_text())] == []


@pytest.mark.slow
def test_pictures_are_there_as_pictures(site: Path) -> None:
    page = next(path for path in (site / "html").rglob("watch.html"))
    sources = re.findall(r'<img[^>]*src="?([^" >]+)', page.read_text())
    assert any(name.endswith("watch-light.png") for name in sources)
    assert all((page.parent / name).read_bytes().startswith(b"\x89PNG") for name in sources if "watch" in name)


@pytest.mark.slow
def test_search_finds_pages_and_reference(site: Path) -> None:
    found = json.dumps(json.loads((site / "html" / "search.json").read_text()))
    assert all(word in found for word in ("first-hour.html", "reference/commands.html", "--max-num-batched-tokens"))


@pytest.mark.slow
def test_the_reference_has_all_commands_files_and_names(site: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "sloserve.cli", "--help"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    commands = set(re.findall(r"^  ([a-z][\w-]+)  ", shown, re.MULTILINE))
    pages = {path.stem: path.read_text() for path in (site / "pages" / "reference").glob("*.md")}
    assert {"serve", "simulate", "fleet"} <= commands
    assert {name for name in commands if f"## sloserve {name}" not in pages["commands"]} == set()
    assert all(f"## {path.name}" in pages["files"] for path in (ROOT / "configs").glob("*.yaml"))
    assert "sloserve.client.TokenBuffer" in pages["python"]


@pytest.mark.slow
def test_nothing_is_out_of_reach_on_narrow_and_wide_screens(site: Path, tmp_path: Path) -> None:
    """``SLOSERVE_SCREENSHOTS`` names a folder that keeps the pictures."""
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    node = shutil.which("node")
    if chromium is None or node is None or not (BROWSER / "node_modules" / "playwright-core").is_dir():
        pytest.skip("NOT TESTED: the site in a browser needs node, chromium and `npm ci` in clients/page")
    pictures = ROOT / os.environ.get("SLOSERVE_SCREENSHOTS", tmp_path)
    pictures.mkdir(exist_ok=True)
    command = [node, "test/site.mjs", chromium, str(site / "html"), str(pictures), *SEEN]
    done = subprocess.run(command, cwd=BROWSER, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(one["width"], one["name"]) for one in found] == [(width, name) for width in (360, 1280) for name in SEEN]
    for one in found:
        assert one["overflow"] <= 0 and one["lost"] == [] and one["broken"] == [], one
    (wide,) = [one for one in found if (one["width"], one["name"]) == (1280, "index.html")]
    assert wide["hidden"] == [0], "the diagram of the first page is cut"


@pytest.mark.slow
def test_a_dead_anchor_ends_the_build(site: Path) -> None:
    page = site / "pages" / "first-hour.md"
    whole = page.read_text()
    page.write_text(whole + "\n[nowhere](serve.md#nowhere)\n")
    try:
        zensical = str(Path(sys.executable).parent / "zensical")
        built = subprocess.run(
            [zensical, "build", "--strict"], cwd=site, capture_output=True, text=True, timeout=120, check=False
        )
    finally:
        page.write_text(whole)
    assert built.returncode != 0 and "anchor does not exist" in built.stderr
