"""The HTML report in a real browser: nothing is fetched, filters and copying work, everything can be read."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from auxout_conformance import report, runner
from auxout_conformance.reports import FORMATS

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium"),
]

DESKTOP, PHONE = (1280, 900), (390, 844)
LIGHT, DARK = 1, 0
"""Chromium's numbers of the preferred colour scheme."""

PROBE = """
const seen = {};
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const visible = (element) => element.checkVisibility();

function rgba(text) {
  const parts = text.match(/[\\d.]+/g).map(Number);
  return parts.length === 3 ? [...parts, 1] : parts;
}
function ground(element) {
  for (let at = element; at; at = at.parentElement) {
    const colour = rgba(getComputedStyle(at).backgroundColor);
    if (colour[3] === 1) return colour;
  }
  return [255, 255, 255, 1];
}
function luminance([r, g, b]) {
  const linear = [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}
function contrast(one, other) {
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
}

(async () => {
  await wait(100);
  seen.requests = performance.getEntriesByType("resource").length;
  seen.width = innerWidth;
  seen.overflow = document.documentElement.scrollWidth - innerWidth;

  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  seen.faint = [];
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const shown = texts.currentNode.data.trim() && element.getClientRects().length && !element.closest("svg, script");
    if (!shown) continue;
    const ratio = contrast(rgba(getComputedStyle(element).color), ground(element));
    if (ratio < 4.5) seen.faint.push(`${element.className || element.tagName} ${ratio.toFixed(2)}`);
  }

  const form = document.querySelector("form.filters");
  const rows = [...document.querySelectorAll("table.clauses tbody tr")];
  const count = () => rows.filter(visible).length;
  seen.all = count();
  seen.said = form.querySelector("[role=status]").textContent;
  form.querySelector("[value=holds]").click();
  seen.withoutHolding = count();
  seen.statuses = [...new Set(rows.filter(visible).map((row) => row.dataset.status))];
  form.querySelector("[value=holds]").click();
  form.elements.text.value = "term-";
  form.elements.text.dispatchEvent(new Event("input", { bubbles: true }));
  seen.found = rows.filter(visible).map((row) => row.cells[0].textContent.trim());

  const focusable = [...document.querySelectorAll("a, button, input, summary, [tabindex='0']")].filter(visible);
  seen.unreachable = focusable.filter((each) => { each.focus(); return document.activeElement !== each; }).length;
  seen.nameless = focusable.filter((each) =>
    !(each.textContent.trim() || each.getAttribute("aria-label") || each.closest("label"))).length;

  let copied = null;
  Object.defineProperty(navigator, "clipboard", { value: { writeText: async (text) => { copied = text; } } });
  const button = document.querySelector(".trouble > .command button.copy");
  button.click();
  await wait(50);
  seen.copied = copied;
  seen.isCopied = button.firstChild.data;
  seen.told = document.getElementById("told").textContent;
  seen.buttons = [...document.querySelectorAll("button.copy")].every((each) => !each.hidden);

  const picture = document.querySelector(".picture");
  seen.pictureFits = picture.getBoundingClientRect().right <= innerWidth;
  seen.pictureWidth = picture.querySelector("svg").getBoundingClientRect().width;

  parent.postMessage(JSON.stringify(seen), "*");
})();
"""
FRAME = """<!doctype html>
<body style="margin: 0">
<iframe src="{source}" width="{width}" height="{height}" style="border: 0"></iframe>
<pre id="seen"></pre>
<script>
addEventListener("message", (event) => {{ document.getElementById("seen").textContent = event.data; }});
</script>
"""
"""A window is at least 500 pixels wide, a frame is not."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a judgement with a violation."""
    judged = runner.judge("known-bad:event-without-hashes", suite="smoke")
    text = FORMATS["html"](report.read(report.dump([judged], report.header(["auxout"]))))
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


def seen(page: Path, size: tuple[int, int], scheme: int) -> dict[str, Any]:
    """What a probe in the page finds."""
    probed, frame = page.with_name("probed.html"), page.with_name("frame.html")
    text = page.read_text(encoding="utf-8")
    probed.write_text(text.replace("</body>", f"<script>{PROBE}</script></body>"), encoding="utf-8")
    width, height = size
    frame.write_text(FRAME.format(source=probed.name, width=width, height=height), encoding="utf-8")
    found = re.search(r'<pre id="seen">(.+?)</pre>', loaded(frame, scheme), re.DOTALL)
    assert found is not None, "the probe did not come to its end"
    return json.loads(html.unescape(found.group(1)))


def loaded(page: Path, scheme: int) -> str:
    """The page as it is once its scripts have run."""
    assert BROWSER is not None
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000",
            "--virtual-time-budget=5000", f"--blink-settings=preferredColorScheme={scheme}",
            f"--user-data-dir={page.parent / 'profile'}", "--dump-dom", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_works_and_can_be_read(page: Path, size: tuple[int, int], scheme: int) -> None:
    found = seen(page, size, scheme)
    assert found["requests"] == 0
    assert found["width"] == size[0]
    assert found["overflow"] <= 0
    assert found["faint"] == []
    assert found["said"] == f"{found['all']} of {found['all']} clauses"
    assert 0 < found["withoutHolding"] < found["all"]
    assert "holds" not in found["statuses"]
    assert found["found"]
    assert all("term-" in text.lower() for text in found["found"])
    assert found["unreachable"] == 0
    assert found["nameless"] == 0
    assert found["copied"].startswith("auxout replay '{")
    assert (found["isCopied"], found["told"]) == ("Copied", "Copied.")
    assert found["buttons"]
    assert found["pictureFits"]
    assert found["pictureWidth"] > 500


def test_the_scheme_is_really_switched(page: Path) -> None:
    """Otherwise the contrast of the dark colours is not tested."""
    dark = page.with_name("dark.html")
    query = "matchMedia('(prefers-color-scheme: dark)').matches"
    dark.write_text(
        f"<!doctype html><pre id=x></pre><script>x.textContent = {query}</script>", encoding="utf-8"
    )
    assert ">false</pre>" in loaded(dark, LIGHT)
    assert ">true</pre>" in loaded(dark, DARK)
