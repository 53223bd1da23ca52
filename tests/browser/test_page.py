"""The status page in a real browser, before a real cluster with traffic."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from deploy.cluster import LocalCluster
from tests.browser.conftest import Open
from tests.browser.traffic import Traffic

PATIENCE_MS = 60_000
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1100, "height": 1900}
# Where the pictures of the docs are written, and the cluster that is in them, when told.
PICTURES = os.environ.get("ORCHID_PAGE_PICTURES", "")
MODEL = os.environ.get("ORCHID_PAGE_URL", "")
MOST_BYTES = 300_000

expect.set_options(timeout=PATIENCE_MS)


def url_of(cluster: LocalCluster) -> str:
    return f"{cluster.page_url}/"


def listen(page: Page) -> list[str]:
    """What the console complains of from now on, and scripts that fail."""
    said: list[str] = []
    page.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    return said


def figure(page: Page, name: str) -> str:
    """A figure of the glance by its name."""
    tile = page.locator("#glance > div", has=page.get_by_text(name, exact=True))
    return str(tile.locator("dd span").inner_text())


def overflow(page: Page) -> int:
    """Pixels by which the page is wider than its window."""
    return int(
        page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    )


def test_it_shows_the_cluster_and_its_figures_move(
    cluster: LocalCluster, traffic: Traffic, open_page: Open
) -> None:
    page = open_page("about:blank")
    said = listen(page)
    page.goto(url_of(cluster))
    expect(page.locator("#link")).to_have_text("Live")
    workers = page.locator("#workers tbody tr")
    expect(workers).to_have_count(2)
    encoder = workers.filter(has_text="worker-0")
    expect(encoder).to_have_count(1)
    expect(page.locator("#workers")).to_contain_text("decode-0")
    expect(page.locator("#queues")).to_contain_text("paced")
    expect(page.locator("#mix h3")).to_have_text(["paced", "tiny-chat"])

    # The figures are alive: more and more is completed, and answers come each second.
    completed = encoder.locator("td[data-label='Completed']")
    expect(completed).not_to_have_text("0")
    before = completed.inner_text()
    expect(completed).not_to_have_text(before)
    page.wait_for_function(
        "document.querySelectorAll('#mix .model:first-child svg rect').length > 2",
        timeout=PATIENCE_MS,
    )
    assert float(figure(page, "Answered").replace(",", "")) > 0
    assert figure(page, "Workers ready") == "2"

    # What their memory is for, drawn and in words.
    bars = page.locator("#memory .lane")
    expect(bars).to_have_count(2)
    expect(bars.first.locator("svg.waterfall rect")).to_have_count(5)
    expect(bars.first.locator(".legend")).to_contain_text("weights")
    assert "MiB" in (bars.first.locator("svg.waterfall").get_attribute("aria-label") or "")

    # The decode worker has its arena, drawn and in words.
    lane = page.locator("#generators .lane")
    expect(lane).to_contain_text("decode-0")
    expect(lane.locator("p")).to_contain_text("blocks in use")
    canvas = lane.locator("canvas")
    expect(canvas).to_be_visible()
    assert "blocks in use" in (canvas.get_attribute("aria-label") or "")
    page.wait_for_function(
        """() => {
          const canvas = document.querySelector('#generators canvas');
          const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          const seen = new Set();
          for (let k = 0; k < data.length; k += 4) {
            if (data[k + 3] === 255) seen.add(`${data[k]},${data[k + 1]},${data[k + 2]}`);
          }
          return seen.size >= 2;
        }""",
        timeout=PATIENCE_MS,
    )
    assert said == []
    assert overflow(page) <= 0


def test_on_a_phone_nothing_is_wider_than_the_screen(
    cluster: LocalCluster, traffic: Traffic, open_page: Open
) -> None:
    for scheme in ("light", "dark"):
        page = open_page(url_of(cluster), **PHONE, color_scheme=scheme, has_touch=True)
        expect(page.locator("#link")).to_have_text("Live")
        expect(page.locator("#workers")).to_contain_text("decode-0")
        expect(page.locator("#generators .lane canvas")).to_be_visible()
        expect(page.locator("#memory .lane")).to_have_count(2)
        for details in page.locator("details summary").all():
            details.click()
        assert overflow(page) <= 0
        # Rows are cards: a label stands before each figure.
        label = page.locator("#workers tbody td[data-label='Completed']").first
        assert "Completed" in str(
            label.evaluate("cell => getComputedStyle(cell, '::before').content")
        )
        assert label.evaluate("cell => cell.getBoundingClientRect().right") <= PHONE["width"]


CONTRAST = """
() => {
  const channel = (value) => {
    const share = value / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const behind = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return parse(getComputedStyle(document.body).backgroundColor);
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.closest('svg')) continue;
    const [one, other] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) low.push([node.tagName, walker.currentNode.data.trim(), ratio].join(' '));
  }
  return low;
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(
    cluster: LocalCluster, traffic: Traffic, open_page: Open, scheme: str
) -> None:
    page = open_page(url_of(cluster), color_scheme=scheme)
    expect(page.locator("#link")).to_have_text("Live")
    expect(page.locator("#generators .lane canvas")).to_be_visible()
    assert page.evaluate(CONTRAST) == []
    # Every picture has its words, every table its headings.
    assert (
        page.evaluate(
            "[...document.querySelectorAll('svg[role=img], canvas')].filter("
            "e => !e.getAttribute('aria-label') && !e.querySelector('title')).length"
        )
        == 0
    )
    assert (
        page.evaluate(
            "[...document.querySelectorAll('tbody tr')].filter("
            "row => !row.querySelector('th[scope=row], .empty')).length"
        )
        == 0
    )


def test_the_theme_is_chosen_and_remembered(cluster: LocalCluster, open_page: Open) -> None:
    page = open_page(url_of(cluster), color_scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    button = page.locator("#theme")
    expect(button).to_have_text("Theme: as the system")
    button.click()
    button.click()
    expect(button).to_have_text("Theme: dark")
    dark = page.evaluate(background)
    assert dark != light
    page.reload()
    expect(button).to_have_text("Theme: dark")
    assert page.evaluate(background) == dark


def test_names_that_callers_chose_are_never_read_as_markup(
    cluster: LocalCluster, open_page: Open
) -> None:
    page = open_page(url_of(cluster))
    expect(page.locator("#link")).to_have_text("Live")
    evil = "<img src=x onerror=\"document.title='owned'\"><b>name</b>"
    page.evaluate(
        """async (name) => {
          const { el, fill, figures, badge } = await import('/dom.js');
          const { legend, waterfall } = await import('/drawings.js');
          const table = document.getElementById('slow');
          const request = { total_ms: 1, phases: [{ name, start_ms: 0, ms: 1 }] };
          const bar = waterfall(request, name);
          fill(table, [[name, [badge(name, 'bad')], name, name, name, [bar]]], '');
          figures(document.getElementById('glance'), [[name, name, name]]);
          const list = el('ul', { id: 'evil' });
          document.body.append(list);
          legend(list, [{ name, note: name }]);
        }""",
        evil,
    )
    assert page.locator("#slow b, #glance b, #evil b").count() == 0
    assert page.locator("#slow img, #glance img, #evil img").count() == 0
    expect(page.locator("#evil")).to_contain_text(evil)
    assert page.title() == "Orchid status"


def test_a_lost_worker_is_shown_as_lost(cluster: LocalCluster, open_page: Open) -> None:
    page = open_page(url_of(cluster))
    expect(page.locator("#workers")).to_contain_text("worker-0")
    cluster.kill_worker("worker-0")
    row = page.locator("#workers tbody tr", has_text="worker-0")
    expect(row.locator(".badge")).to_have_text("lost")
    expect(row).to_contain_text("ago")
    cluster.restart_worker("worker-0")
    expect(row.locator(".badge")).to_have_text("ready")


def test_it_says_that_the_connection_is_lost_and_comes_back(
    cluster: LocalCluster, open_page: Open
) -> None:
    page = open_page(url_of(cluster))
    expect(page.locator("#link")).to_have_text("Live")
    # A control plane that stands still sends nothing and ends nothing.
    cluster.signal("controlplane", signal.SIGSTOP)
    expect(page.locator("#link")).to_have_text("No connection")
    expect(page.locator("#notice")).to_contain_text("What you see is from then")
    expect(page.locator("#workers")).to_contain_text("worker-0")
    cluster.signal("controlplane", signal.SIGCONT)
    expect(page.locator("#link")).to_have_text("Live")
    expect(page.locator("#notice")).to_be_hidden()

    cluster.stop_controlplane()
    expect(page.locator("#link")).to_have_text("No connection")
    assert page.title() == "(no connection) Orchid status"
    cluster.start_controlplane()
    expect(page.locator("#link")).to_have_text("Live")
    expect(page.locator("#workers tbody tr")).to_have_count(2)
    assert page.title() == "Orchid status"


def test_an_empty_house_says_what_to_do(tmp_path: Path, repository: Path, open_page: Open) -> None:
    from deploy.cluster import ClusterSpec

    spec = ClusterSpec(
        workers=0,
        directory=tmp_path / "empty",
        listen="127.0.0.1:0",
        page="127.0.0.1:0",
        repository=repository,
    )
    with LocalCluster(spec) as cluster:
        page = open_page("about:blank")
        said = listen(page)
        page.goto(url_of(cluster))
        expect(page.locator("#queues")).to_contain_text("start one with `orchid worker")
        expect(page.locator("#workers")).to_contain_text("No worker has registered")
        expect(page.locator("#mix-empty")).to_be_visible()
        expect(page.locator("#text")).to_be_hidden()
        assert said == []


def test_pictures_for_the_docs(
    request: pytest.FixtureRequest, open_page: Open, tmp_path: Path
) -> None:
    folder = Path(PICTURES or tmp_path)
    url = MODEL or url_of(request.getfixturevalue("cluster"))
    if not MODEL:
        request.getfixturevalue("traffic")
    for name, window in (("desktop", DESK), ("phone", PHONE)):
        page = open_page(url, **window)
        expect(page.locator("#generators .lane canvas")).to_be_visible()
        path = folder / f"status-page-{name}.png"
        page.screenshot(path=path)
        assert path.stat().st_size < MOST_BYTES
