"""Chromium without a window: a page's tree after it was loaded, and a picture of it. A missing browser is an error."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

_DEADLINE_S = 60.0
# What a reader would notice: the page is wider than the screen, a chart has no size, letters too small, wrong colours.
_MEASURE = """
const frame = document.getElementById("page");
frame.addEventListener("load", () => {
  const page = frame.contentDocument, view = frame.contentWindow;
  const box = element => element.getBoundingClientRect();
  const scrolls = element => element.closest(".scroll") !== null;
  const texts = [...page.querySelectorAll("svg text")].map(t => box(t).height);
  const wide = [...page.body.querySelectorAll("*")].filter(e => !scrolls(e) && box(e).right > view.innerWidth + 1);
  const bars = [...page.querySelectorAll("#errors .fill")].map(bar => box(bar).width);
  const result = {
    title: page.title, width: page.documentElement.scrollWidth, view: view.innerWidth,
    wide: wide.slice(0, 5).map(e => e.outerHTML.slice(0, 120)),
    charts: [...page.querySelectorAll("svg")].map(svg => [box(svg).width, box(svg).height]),
    paths: [...page.querySelectorAll("svg .stored")].map(path => [box(path).width, box(path).height]),
    text: Math.min(...texts), bars: bars,
    background: view.getComputedStyle(page.body).backgroundColor, ink: view.getComputedStyle(page.body).color,
    headings: [...page.querySelectorAll("h1, h2")].map(h => h.textContent),
    crosses: page.querySelectorAll("path.other").length, points: page.querySelectorAll("circle.same").length,
    scripts: page.querySelectorAll("script").length, rows: page.querySelectorAll("#table tbody tr").length,
    checks: [...page.querySelectorAll("#checks tbody tr")].map(row => [...row.cells].map(cell => cell.innerText)),
    checksTop: Math.min(...[...page.querySelectorAll("#checks")].map(section => box(section).top)),
    findingsTop: box(page.querySelector("#findings")).top,
    verdicts: [...page.querySelectorAll("#checks .verdict")].map(cell => view.getComputedStyle(cell).color),
    loads: [...page.querySelectorAll("[src], link")].length,
    requests: view.performance.getEntriesByType("resource").length,
  };
  const out = document.createElement("pre");
  out.id = "measured";
  out.textContent = JSON.stringify(result);
  document.body.append(out);
});
"""


def _chromium(profile: Path, *words: str) -> bytes:
    browser = shutil.which("chromium")
    assert browser is not None, "the tests need Chromium: sudo apt-get install -y chromium"
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
               "--disable-dev-shm-usage", f"--user-data-dir={profile}", *words]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=_DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def measure(page: Path, folder: Path, *, width: int, dark: bool = False) -> dict[str, Any]:
    """Load a page in a frame of `width` and return what the script above found in it."""
    wrapper = folder / f"measure-{width}-{dark}.html"
    source = escape(page.read_text(), quote=True)
    wrapper.write_text(
        f'<!doctype html><meta charset="utf-8"><body><script>addEventListener("DOMContentLoaded", () => {{{_MEASURE}'
        f'frame.srcdoc = document.getElementById("source").value; }});</script><textarea id="source" hidden>{source}'
        f'</textarea><iframe id="page" style="width:{width}px;height:900px;border:0"></iframe>'
    )
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    tree = _chromium(
        folder / "profile", scheme, "--window-size=1600,1000", "--virtual-time-budget=5000", "--dump-dom",
        wrapper.as_uri(),
    ).decode()  # fmt: skip
    found = re.search(r'<pre id="measured">(.*?)</pre>', tree, re.DOTALL)
    assert found, tree[-1000:]
    result: dict[str, Any] = json.loads(unescape(found[1]))
    return result


def screenshot(page: Path, folder: Path, *, width: int, height: int) -> bytes:
    """Return a picture of a page, PNG."""
    picture = folder / "picture.png"
    _chromium(folder / "profile", f"--window-size={width},{height}", f"--screenshot={picture}", page.as_uri())
    return picture.read_bytes()
