"""The theatre as a page from disk, the network blocked: every control works, texts stay texts, axe finds nothing."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from hand_trace import HOSTILE, expected_target, hand_trace
from playwright.sync_api import Browser, Locator, Page, Route, expect

from dominotree_lite.trace import Trace
from dominotree_lite.viz.theatre import TreeTheatre

NETWORK = re.compile(r"^(?!file:|data:)")
PLAIN = [f" w{i}" for i in range(12)]
Open = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens the page of a trace; any request, error or warning on it fails the test at the end."""
    contexts, faults = [], []

    def open_trace(trace: dict[str, Any], width: int = 1280, **options: Any) -> Page:
        file = TreeTheatre(Trace.from_json(trace)).export_html(tmp_path / "theatre.html")
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)

        def block(route: Route) -> None:
            faults.append(route.request.url)
            route.abort()

        context.route(NETWORK, block)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda m: faults.append(m.text) if m.type in ("error", "warning") else None)
        page.goto(file.as_uri())
        page.locator("[role=treeitem]").first.wait_for()
        return page

    yield open_trace
    for context in contexts:
        context.close()
    assert faults == []


def panel(page: Page, method: str = "dominotree") -> Locator:
    return page.locator(f".dt-panel[data-method={method}]")


def nodes(page: Page, method: str = "dominotree") -> list[int]:
    """Nodes of the union that are visible in a tree, in the order in which they were taken."""
    items = panel(page, method).locator("[role=treeitem]:visible").all()
    rows = {int(item.get_attribute("data-row") or -1): int(item.get_attribute("data-node") or -1) for item in items}
    return [rows[row] for row in sorted(rows)]


def node(page: Page, number: int, method: str = "dominotree") -> Locator:
    return panel(page, method).locator(f"[role=treeitem][data-node='{number}']")


def slide(page: Page, name: str, key: str, times: int = 1) -> None:
    control = page.get_by_label(name, exact=True)
    for _ in range(times):
        control.press(key)


def one(trace: dict[str, Any], at: int = 0) -> dict[str, Any]:
    return trace["prompts"][0]["rounds"][at]


# --- what is drawn --------------------------------------------------------------------------------------


def test_three_trees_are_drawn_with_what_the_target_accepts(opened: Open) -> None:
    trace = hand_trace(12, 2, PLAIN)
    assert one(trace)["accepted"]["dominotree"]["8"]
    page = opened(trace)
    for method in ("marginal", "greedypath", "dominotree"):
        assert nodes(page, method) == one(trace)["trees"][method]["8"]["nodes"]
        accepted = [int(e.get_attribute("data-node") or 0) for e in panel(page, method).locator("g.dt-accepted").all()]
        assert sorted(accepted) == sorted(one(trace)["accepted"][method]["8"])
        bonus = panel(page, method).locator("g.dt-bonus text")
        assert bonus.text_content() == PLAIN[one(trace)["bonus"][method]["8"]].replace(" ", "␣")


def test_budget_and_candidates_are_prefixes_and_other_trees(opened: Open) -> None:
    trace = hand_trace(12, 1, PLAIN)
    page = opened(trace)
    slide(page, "Budget", "ArrowLeft", 5)
    assert nodes(page) == one(trace)["trees"]["dominotree"]["8"]["nodes"][:8]
    slide(page, "Candidates M", "ArrowLeft")
    assert nodes(page) == one(trace)["trees"]["dominotree"]["4"]["nodes"][:8]
    slide(page, "Budget", "Home")
    assert nodes(page) == [0]
    expect(page.get_by_label("Budget", exact=True)).to_have_attribute("aria-valuetext", "0 nodes")


def test_step_play_and_scrub_show_the_heap(opened: Open) -> None:
    trace = hand_trace(8, 1, PLAIN)
    page, tree = opened(trace), one(trace)["trees"]["marginal"]["8"]
    slide(page, "Builder's step", "Home")
    page.get_by_role("button", name="Step", exact=True).click(click_count=1)
    page.get_by_role("button", name="Step", exact=True).press("Enter")
    assert nodes(page, "marginal") == tree["nodes"][:3]
    taken = {(-1, 0)} | {(tree["nodes"].index(one(trace)["nodes"]["parents"][n]), one(trace)["nodes"]["tokens"][n])
                         for n in tree["nodes"][1:3]}  # fmt: skip
    waiting = sorted((p for ps in tree["pushed"][:3] for p in ps if (p[0], p[1]) not in taken), key=lambda p: -p[2])
    shown = panel(page, "marginal").locator(".dt-heap li:visible").all_text_contents()
    assert [text.split(" after ")[0] for text in shown] == [PLAIN[p[1]].replace(" ", "␣") for p in waiting[:5]]
    page.get_by_role("button", name="Step back").click()
    assert nodes(page, "marginal") == tree["nodes"][:2]
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Play")).to_be_visible(timeout=10_000)  # it was Pause until the end
    assert nodes(page, "marginal") == tree["nodes"]


def test_rounds_let_the_text_grow(opened: Open) -> None:
    trace = hand_trace(8, 3, PLAIN)
    page = opened(trace)
    slide(page, "Round", "End")
    words = [PLAIN[0], *(PLAIN[t] for at in range(2) for t in one(trace, at)["emitted"])]
    assert page.locator(".dt-old").text_content() == "".join(words)
    assert page.locator(".dt-new").text_content() == "".join(PLAIN[t] for t in one(trace, 2)["emitted"])
    assert page.locator(".dt-asked").text_content() == "Why?"


def test_each_tree_is_scrolled_to_what_is_accepted_unless_that_is_to_be_guessed(opened: Open) -> None:
    trace = hand_trace(60, 2, PLAIN)
    page, last = opened(trace), one(trace)["accepted"]["dominotree"]["8"][-1]
    box, own = panel(page).locator(".dt-scroll").bounding_box(), node(page, last).bounding_box()
    assert box and own
    assert box["x"] <= own["x"] and own["x"] + own["width"] <= box["x"] + box["width"]
    assert box["y"] <= own["y"] and own["y"] + own["height"] <= box["y"] + box["height"]
    page.get_by_label("Predict the branch").check()
    scroll = panel(page).locator(".dt-scroll")
    scroll.evaluate("box => box.scrollTo(0, 0)")
    slide(page, "Round", "ArrowRight")
    assert scroll.evaluate("box => [box.scrollLeft, box.scrollTop]") == [0, 0]


@pytest.mark.parametrize(("times", "temperature"), [(1, 0.5), (2, 1.0), (3, 1.5)])
def test_temperature_shows_what_the_target_expects(opened: Open, times: int, temperature: float) -> None:
    trace = hand_trace(12, 1, PLAIN)
    page = opened(trace)
    slide(page, "Temperature", "ArrowRight", times)
    wanted = expected_target(trace, one(trace)["trees"]["dominotree"]["8"]["nodes"], 0, temperature)
    found = re.search(r"expects ([\d.]+) at T", panel(page).locator(".dt-summary").inner_text())
    assert found and abs(float(found[1]) - wanted) < 0.006  # two decimals are shown


# --- one node -------------------------------------------------------------------------------------------


def test_a_node_and_its_twins_light_up_with_all_that_is_known_of_it(opened: Open) -> None:
    trace = hand_trace(12, 1, PLAIN)
    page, row = opened(trace), one(trace)
    both = [n for n in row["trees"]["dominotree"]["8"]["nodes"][1:] if n in row["trees"]["marginal"]["8"]["nodes"]]
    deep = max(both, key=lambda n: row["nodes"]["depths"][n])
    node(page, deep).hover()
    for method in ("marginal", "dominotree"):
        assert "dt-hot" in (node(page, deep, method).get_attribute("class") or "")
    path, at = [], deep
    while at:
        path.insert(0, at)
        at = row["nodes"]["parents"][at]
    order = row["trees"]["dominotree"]["8"]["nodes"]
    place, depth = order.index(deep), row["nodes"]["depths"][deep]
    assert page.locator(".dt-path").text_content() == PLAIN[0] + "".join(PLAIN[row["nodes"]["tokens"][n]] for n in path)
    cells = page.locator(".dt-detail tbody tr").nth(2).locator("td").all_text_contents()
    assert cells[0] == f"number {place}" and cells[2:4] == [str(7 + depth), str(7 + place)]
    columns = ", ".join(str(order.index(n)) for n in [0, *path])
    assert page.locator(".dt-card").nth(1).locator("p").text_content() == (
        f"Row {place} sees the 7 committed tokens and columns {columns}."
    )


def test_children_before_and_after_the_correction(opened: Open) -> None:
    trace = hand_trace(12, 1, PLAIN)
    page, children = opened(trace), one(trace)["children"]["0"]
    node(page, 0).click()
    rows = page.locator(".dt-card").nth(2).locator("tbody tr")
    assert rows.count() == len(children["tokens"])
    assert rows.first.locator("th").text_content() == PLAIN[children["tokens"][0]].replace(" ", "␣")
    leaf = next(n for n in one(trace)["trees"]["dominotree"]["8"]["nodes"] if str(n) not in one(trace)["children"])
    node(page, leaf).click()
    expect(page.locator(".dt-card").nth(2)).to_contain_text("Not recorded")
    expect(page.locator(".dt-card").nth(2).locator("table")).to_be_hidden()


def test_the_keyboard_walks_the_tree_and_a_screen_reader_hears_it(opened: Open) -> None:
    trace = hand_trace(12, 1, PLAIN)
    page, row = opened(trace), one(trace)
    order, parents, tokens = row["trees"]["dominotree"]["8"]["nodes"], row["nodes"]["parents"], row["nodes"]["tokens"]
    assert panel(page).locator("[tabindex='0']").count() == 1
    node(page, 0).focus()

    def focused() -> int:
        return int(page.evaluate("document.activeElement.dataset.node"))

    page.keyboard.press("ArrowRight")
    first = next(n for n in order[1:] if parents[n] == 0)
    assert focused() == first
    live = page.locator("[aria-live=polite]")
    expect(live).to_contain_text(PLAIN[tokens[first]])
    expect(live).to_contain_text("Score")
    page.keyboard.press("ArrowDown")
    assert focused() != first
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    assert focused() == 0
    page.keyboard.press("End")
    last = focused()
    page.keyboard.press("Enter")
    assert node(page, last).get_attribute("aria-selected") == "true"
    assert panel(page).locator("[tabindex='0']").count() == 1
    page.keyboard.press("Home")
    assert focused() == 0


def test_guessing_hides_the_answer_and_counts(opened: Open) -> None:
    trace = hand_trace(12, 2, PLAIN)
    page, row = opened(trace), one(trace)
    page.get_by_label("Predict the branch").check()
    assert page.locator("g.dt-accepted").count() == 0
    assert page.locator(".dt-new").text_content() == "…"
    expect(panel(page).locator(".dt-summary")).to_contain_text("hidden until you have guessed")
    known = {row["nodes"]["tokens"][n]: n for n in row["trees"]["dominotree"]["8"]["nodes"][1:]
             if row["nodes"]["parents"][n] == 0}  # fmt: skip
    options = page.locator(".dt-options button")
    labels = options.all_text_contents()
    assert labels[-1] == "none of these" and len(labels) == min(len(known), 6) + 1
    right = PLAIN[row["choice"][0]].replace(" ", "␣")
    options.filter(has_text=re.compile(f"^{right}$" if right in labels else "^none")).click()
    expect(page.locator(".dt-guess [role=status]")).to_contain_text("1 of 1 right")
    while page.locator(".dt-options button").count():
        page.locator(".dt-options button").last.click()
    expect(page.locator(".dt-guess")).to_contain_text("This round is over")
    assert page.locator(".dt-new").text_content() == "".join(PLAIN[t] for t in row["emitted"])
    slide(page, "Round", "ArrowRight")
    assert page.locator(".dt-new").text_content() == "…"


# --- for everyone, and against everything ---------------------------------------------------------------


def test_hostile_texts_are_shown_literally(opened: Open) -> None:
    prompt = "<img src=x onerror='window.broken=1'> \u202eabc\n</script><script>window.broken=1</script> e\u0301 🚀"
    trace = hand_trace(40, 2, HOSTILE, prompt)
    page = opened(trace)
    assert page.locator(".dt-asked").text_content() == prompt
    row = one(trace)
    assert page.locator(".dt-new").text_content() == "".join(HOSTILE[t] for t in row["emitted"])
    for number in row["trees"]["dominotree"]["8"]["nodes"]:
        node(page, number).focus()
        path, at = [], number
        while at:
            path.insert(0, at)
            at = row["nodes"]["parents"][at]
        texts = [HOSTILE[row["nodes"]["tokens"][n]] for n in [0, *path]]
        assert page.locator(".dt-path").text_content() == "".join(texts)
    assert page.evaluate("window.broken") is None
    assert page.locator("main img, main script").count() == 0
    labels = page.locator("[role=treeitem] text").all_text_contents()
    assert all(labels) and not any(re.search(r"[\n\t\u202e\u2028\x00]", label) for label in labels)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_issue(opened: Open, scheme: str) -> None:
    page = opened(hand_trace(12, 2, PLAIN), color_scheme=scheme)
    page.get_by_label("Predict the branch").check()
    page.get_by_text("Keys and marks").click()
    node(page, 0).click()
    found = [v for v in Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
    assert [(v["id"], [n["html"][:120] for n in v["nodes"]]) for v in found] == []


def test_axe_sees_what_is_wrong(opened: Open) -> None:
    """The control: a slider without a name, and text that can't be read."""
    page = opened(hand_trace(4, 1, PLAIN))
    page.evaluate("document.querySelectorAll('.dt-controls label').forEach(label => label.remove())")
    page.evaluate("document.querySelector('.dt-asked').style.color = '#eeeeee'")
    found = {v["id"] for v in Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")}
    assert {"label", "color-contrast"} <= found


LUMINANCE = """colour => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(c => c / 255);
    const [r, g, b] = parts.map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_labels_in_the_trees_are_read_easily(opened: Open, scheme: str) -> None:
    """axe does not look at text in pictures."""
    page = opened(hand_trace(12, 2, PLAIN), color_scheme=scheme)
    for kind in ("anchor", "accepted", "rejected", "bonus"):
        group = page.locator(f"g.dt-{kind}:visible").first
        fill = f"e => ({LUMINANCE})(getComputedStyle(e).fill)"
        ink, face = (group.locator(part).first.evaluate(fill) for part in ("text", "rect"))
        assert (max(ink, face) + 0.05) / (min(ink, face) + 0.05) >= 4.5, kind
        size = group.locator("text").first.evaluate("e => parseFloat(getComputedStyle(e).fontSize)")
        assert size >= 12  # 9 points


def test_less_motion_is_honoured(opened: Open) -> None:
    trace = hand_trace(4, 1, PLAIN)
    moving, calm = opened(trace), opened(trace, reduced_motion="reduce")
    seconds = "e => getComputedStyle(e).transitionDuration"
    assert moving.locator(".dt-box").first.evaluate(seconds) != "0s"
    assert calm.locator(".dt-box").first.evaluate(seconds) == "0s"


def test_a_narrow_page_does_not_scroll_sideways(opened: Open) -> None:
    page = opened(hand_trace(12, 1, PLAIN), width=400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.slow
def test_the_page_says_how_long_its_updates_take(opened: Open) -> None:
    """256 nodes a tree. The number is reported, not judged: it is the machine's as much as ours."""
    trace = hand_trace(256, 1, PLAIN)
    page = opened(trace)
    assert re.search(r"Drawn at first in [\d.]+ ms, 256 nodes a tree", page.locator(".dt-speed").inner_text())
    slide(page, "Budget", "ArrowLeft", 20)
    words = page.locator(".dt-speed").inner_text()
    assert re.search(r"Median update [\d.]+ ms .*20 updates, 236 nodes a tree", words)
    print(words)
    assert json.dumps(nodes(page)) == json.dumps(one(trace)["trees"]["dominotree"]["8"]["nodes"][:237])
