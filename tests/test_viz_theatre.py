"""The theatre's Python half: what it carries, the page it writes, its still twin, and a run with tiny models."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hand_trace import HOSTILE, hand_trace
from traced import toy_drafter, toy_target

from dominotree_lite import recording
from dominotree_lite.decode import Settings, decode
from dominotree_lite.drafter import Drafter
from dominotree_lite.errors import InputError
from dominotree_lite.target import Target
from dominotree_lite.trace import Trace
from dominotree_lite.viz import theatre as module
from dominotree_lite.viz.theatre import TreeTheatre

SECONDS = 120.0  # a run that hangs is given up then
SHIPPED = recording.TRACES / "theatre.json"


def staged(*arguments: Any) -> TreeTheatre:
    return TreeTheatre(Trace.from_json(hand_trace(*arguments)))


class Blocks(HTMLParser):
    """The scripts and styles of a page as a browser would cut them out, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.names: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        if tag in ("script", "style"):
            self.found.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.found and self.get_starttag_text() and self.names[-1] in ("script", "style"):
            tag, attrs, text = self.found[-1]
            self.found[-1] = (tag, attrs, text + data)

    def handle_endtag(self, tag: str) -> None:
        self.names.append(f"/{tag}")


# --- a view of a trace ----------------------------------------------------------------------------------


def test_it_carries_the_trace_and_begins_at_the_first_round(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(hand_trace(8, 2)))
    shown = TreeTheatre.from_trace(file)
    assert shown.trace == hand_trace(8, 2)
    assert (shown.prompt, shown.round, shown.budget, shown.candidates, shown.step) == (0, 0, 8, 8, -1)
    assert (shown.selected, shown.models, shown.running) == ({}, [], False)
    assert TreeTheatre.from_trace(file, budget=3).budget == 3


def test_a_bad_file_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "trace.json"
    file.write_text("{}")
    with pytest.raises(InputError, match="trace.json: not a trace"):
        TreeTheatre.from_trace(file)
    file.write_text(json.dumps(hand_trace(8, 1)))
    monkeypatch.setattr(module, "MOST_SHOWN", 7)
    with pytest.raises(InputError, match=r"trace.json: a tree of 8 nodes can't be shown, 7 can"):
        TreeTheatre.from_trace(file)


def test_without_a_trace_there_is_nothing_to_store(tmp_path: Path) -> None:
    for ask in (TreeTheatre().twin, lambda: TreeTheatre().export_html(tmp_path / "x.html")):
        with pytest.raises(InputError, match="no trace yet"):
            ask()


# --- the page -------------------------------------------------------------------------------------------


def test_texts_cannot_leave_the_data_of_a_page(tmp_path: Path) -> None:
    trace = hand_trace(30, 2, HOSTILE, "</script><!--<script>alert(1)</script> \u2028 ]]>")
    shown = TreeTheatre(Trace.from_json(trace))
    shown.round, shown.budget = 1, 9
    page = shown.export_html(tmp_path / "page.html").read_text(encoding="utf-8")
    (_, _, style), (_, how, data), (_, kind, script) = Blocks(page).found
    assert (how["type"], kind["type"]) == ("application/json", "module")
    assert not re.search("[<>&\u2028\u2029]", data)
    view = json.loads(data)
    assert view["trace"] == trace and (view["round"], view["budget"]) == (1, 9) and view["models"] == []
    rule = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert rule
    for part, text in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{part} 'sha256-{digest}'" in rule[1]
    assert "default-src 'none'" in rule[1] and "unsafe" not in rule[1]
    assert not re.search(r"(?:src|href)\s*=|url\(|https?://(?!www\.w3\.org/2000/svg)", page.replace(data, ""))


def test_the_script_never_reads_markup() -> None:
    source = (Path(module.__file__).parent / "theatre.js").read_text(encoding="utf-8")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|import\b", source
    )
    assert "</script" not in source and "<!--" not in source


def test_the_shipped_trace_makes_a_page_of_eighteen_rounds_below_three_megabytes(tmp_path: Path) -> None:
    shown = TreeTheatre.from_trace(SHIPPED)
    assert sum(len(prompt["rounds"]) for prompt in shown.trace["prompts"]) == 18
    assert shown.trace["settings"]["budget"] == 64
    assert shown.export_html(tmp_path / "page.html").stat().st_size < 3_000_000


def test_a_page_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be written"):
        staged(4, 1).export_html(tmp_path)


# --- the twin -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize("budget", [0, 1, 5, 12])
def test_the_twin_shows_the_tree_and_the_path_of_this_budget(budget: int, count: int) -> None:
    raw = hand_trace(12, 2)
    one, record = Trace.from_json(raw).prompts[0].rounds[1], raw["prompts"][0]["rounds"][1]
    for method in ("marginal", "greedypath", "dominotree"):
        still, kept = module._still(one, method, count, budget), record["trees"][method][str(count)]["nodes"]
        kept = kept[: budget + 1]
        assert still.tree.tokens.tolist() == [record["nodes"]["tokens"][node] for node in kept]
        whole = record["accepted"][method][str(count)]
        path = [node for node in whole if node in kept]  # nodes come after their parents
        assert [kept[row] for row in still.accepted] == path
        assert still.bonus == record["choice"][path[-1] if path else 0]


def test_the_twin_is_small_and_says_what_it_shows() -> None:
    shown = TreeTheatre.from_trace(SHIPPED, budget=12)
    picture = shown.twin()
    stored = sum(len(text) for text in picture._repr_mimebundle_().values())
    assert stored < 80_000  # so that a notebook that has one more picture stays below 400 kB
    for method in shown.trace["methods"]:
        assert method["title"] in picture.alt
    assert picture.alt.count("12 nodes") == 3
    first = picture.alt
    shown.round = 1
    assert shown.twin().alt != first


# --- a run ----------------------------------------------------------------------------------------------


@pytest.fixture
def live() -> Iterator[TreeTheatre]:
    shown = TreeTheatre(Trace.from_json(hand_trace(6, 1)), {"toy": lambda: (toy_target(), toy_drafter())}, budget=6)
    yield shown
    shown.cancel()
    shown.wait(SECONDS)


def press(shown: TreeTheatre, **message: Any) -> None:
    """As a button in the page does."""
    shown._handle_custom_msg(message, [])


def test_a_run_shows_the_answer_round_by_round_and_then_its_trace(live: TreeTheatre) -> None:
    told: list[dict[str, Any]] = []
    live.observe(lambda change: told.append(change["new"]), "status")
    press(live, do="run", prompt="Hi there", model="toy", max_new_tokens=20)
    live.wait(SECONDS)
    assert told[0]["state"] == "running" and told[-1]["state"] == "done", told[-1]
    answer = decode("Hi there", toy_target(), toy_drafter(), Settings(budget=64, max_new_tokens=20))
    texts = [each["text"] for each in told if each["text"]]
    assert texts[-1] == answer.text and all(b.startswith(a) for a, b in zip(texts, texts[1:], strict=False))
    assert len(texts) == len(answer.rounds)
    rounds = live.trace["prompts"][0]["rounds"]
    assert [one["emitted"] for one in rounds] == [one.tokens for one in answer.rounds]
    assert live.trace["prompts"][0]["prompt"] == "Hi there"
    assert live.budget == 6 and not live.running


def test_cancel_stops_after_the_round_and_leaves_what_was_shown(live: TreeTheatre) -> None:
    before, may_go = live.trace, Event()

    def slow() -> tuple[Target, Drafter]:
        assert may_go.wait(SECONDS)
        return toy_target(), toy_drafter()

    live._loads["toy"] = slow
    press(live, do="run", prompt="Hi there", model="toy", max_new_tokens=20)
    assert live.running
    with pytest.raises(InputError, match="cancel it or wait"):
        live.run("again", "toy")
    press(live, do="run", prompt="again", model="toy", max_new_tokens=20)
    assert live.status["state"] == "running"  # a second press changes nothing
    press(live, do="cancel")
    may_go.set()
    live.wait(SECONDS)
    assert live.status["state"] == "cancelled" and live.trace == before
    live.run("Hi there", "toy", 8)  # and the next one is not cancelled
    live.wait(SECONDS)
    assert live.status["state"] == "done"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"prompt": " ", "model": "toy", "max_new_tokens": 4}, "the prompt is empty"),
        ({"prompt": "a", "model": "other", "max_new_tokens": 4}, "no model 'other'; there are toy"),
        ({"prompt": "a", "model": "toy", "max_new_tokens": 0}, "0 new tokens: give 1 to 512"),
        ({"prompt": "a", "model": "toy", "max_new_tokens": True}, "give a prompt, a model"),
        ({"prompt": None}, "give a prompt, a model"),
        ({}, "give a prompt, a model"),
    ],
)
def test_a_strange_request_is_answered_by_a_line(live: TreeTheatre, message: dict[str, Any], said: str) -> None:
    press(live, do="run", **message)
    assert live.status["state"] == "failed" and said in live.status["message"]
    assert not live.running


def test_a_failure_in_the_thread_is_told(live: TreeTheatre) -> None:
    def broken() -> tuple[Target, Drafter]:
        raise InputError("no such\nfolder")

    live._loads["toy"] = broken
    live.run("Hi there", "toy", 4)
    live.wait(SECONDS)
    assert live.status["state"] == "failed" and live.status["message"] == "no such folder"


def test_turning_to_a_recorded_prompt_shows_its_first_round() -> None:
    shown = TreeTheatre.from_trace(SHIPPED, budget=5)
    prompts = [prompt["prompt"] for prompt in shown.trace["prompts"]]
    assert len(set(prompts)) == 3
    for number, prompt in enumerate(prompts):
        shown.round, shown.step, shown.selected = 2, 3, {"node": 1}
        shown.turn_to(prompt)
        assert (shown.prompt, shown.round, shown.step, shown.selected) == (number, 0, module.WHOLE, {})
        assert shown.budget == 5


def test_turning_to_another_prompt_answers_it(live: TreeTheatre) -> None:
    live.turn_to("Hi there", 20)
    assert [prompt["prompt"] for prompt in live.trace["prompts"]] == ["Hi there"]
    assert live.trace["settings"]["budget"] == 64 and live.budget == 6
    answer = decode("Hi there", toy_target(), toy_drafter(), Settings(budget=64, max_new_tokens=20))
    assert [one["emitted"] for one in live.trace["prompts"][0]["rounds"]] == [one.tokens for one in answer.rounds]


def test_turning_to_a_prompt_that_nothing_can_answer_says_so(live: TreeTheatre) -> None:
    with pytest.raises(InputError, match="no rounds of the prompt 'other' are recorded, and there is no model"):
        staged(4, 1).turn_to("other")

    def broken() -> tuple[Target, Drafter]:
        raise InputError("no such folder")

    live._loads["toy"] = broken
    before = live.trace
    with pytest.raises(InputError, match="no such folder"):
        live.turn_to("other")
    assert live.trace == before
