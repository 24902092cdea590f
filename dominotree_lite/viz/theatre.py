"""The tree theatre: a trace's rounds as an interactive view, in a notebook, and as a page that needs no kernel.

The picture itself is drawn by `theatre.js`, from plain numbers and texts that `trace.py` has checked; this file
carries them there and back. Where models are given, it also records a trace of the reader's own prompt, in a thread
of its own. It does not know how a tree is built.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from ..errors import InputError
from ..files import write_text
from ..trace import Trace, TracedRound
from ..tree import DraftTree
from .style import Picture, show
from .trees import compare_trees, describe

if TYPE_CHECKING:
    from ..drafter import Drafter
    from ..target import Target

_HERE = Path(__file__).parent
_JS = (_HERE / "theatre.js").read_text(encoding="utf-8")
_CSS = (_HERE / "theatre.css").read_text(encoding="utf-8")
MOST_SHOWN = 1024  # nodes of one tree that a page still draws without a pause
WHOLE = -1  # as a step of the builder: all of them
LIVE_BUDGET, LIVE_TOKENS, MOST_TOKENS = 64, 48, 512
TWIN_DPI, TWIN_COLOURS = 96, 32  # a notebook stores the twin, and has room for little
IDLE = {"state": "idle", "message": "", "text": "", "done": 0, "total": 0}
CAPTION = "Trees of one draft. Filled: accepted. Hollow: rejected. Square: the target's own token."
_VIEW = ("prompt", "round", "budget", "candidates", "temperature", "step", "predict")

Load = Callable[[], "tuple[Target, Drafter]"]


class TreeTheatre(anywidget.AnyWidget):
    """The trees of one round side by side, linked node by node; a view of a trace, or of what is recorded live.

    Args:
        trace: what to show; None where the first prompt is still to be typed.
        models: names to choose among, each with what loads its target and Domino drafter. Without any, there is
            no box for a prompt.
        budget: nodes of a tree that are shown at first (all that are recorded).

    All that is shown can be read and set: `prompt` and `round` (numbers from 0), `budget`, `candidates` (M),
    `temperature`, `step` (nodes taken by the builder, -1 for all) and `predict`. `selected` is the node that was
    clicked last: a dictionary, empty before. Raises InputError for trees too large to show.
    """

    _esm = _JS
    _css = _CSS
    trace = traitlets.Dict().tag(sync=True)
    prompt = traitlets.Int(0).tag(sync=True)
    round = traitlets.Int(0).tag(sync=True)
    budget = traitlets.Int(LIVE_BUDGET).tag(sync=True)
    candidates = traitlets.Int(512).tag(sync=True)
    temperature = traitlets.Float(0.0).tag(sync=True)
    step = traitlets.Int(WHOLE).tag(sync=True)
    predict = traitlets.Bool(False).tag(sync=True)
    selected = traitlets.Dict().tag(sync=True)
    models = traitlets.List(traitlets.Unicode()).tag(sync=True)
    status = traitlets.Dict(IDLE).tag(sync=True)

    def __init__(
        self, trace: Trace | None = None, models: Mapping[str, Load] | None = None, budget: int | None = None
    ) -> None:
        super().__init__()
        self._loads = dict(models or {})
        self._loaded: dict[str, tuple[Target, Drafter]] = {}
        self._stop, self._thread = Event(), Thread()
        self.models = list(self._loads)
        self._budget = budget
        if trace is not None:
            self.show(trace)
        self.on_msg(self._told)

    @classmethod
    def from_trace(
        cls, path: str | Path, models: Mapping[str, Load] | None = None, budget: int | None = None
    ) -> TreeTheatre:
        """A view of the trace in a file. Raises InputError, in one line with the file's name, for a bad one."""
        trace = Trace.load(path)
        try:
            return cls(trace, models, budget)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def __repr__(self) -> str:
        """What stands in the theatre's place where it is not shown; a notebook stores it."""
        return "The tree theatre: run this cell to see it move." if self.trace else "The tree theatre, still empty."

    def show(self, trace: Trace) -> None:
        """Show this trace from its first round on. Raises InputError for trees too large to show."""
        rounds = [one for prompt in trace.prompts for one in prompt.rounds]
        largest = max(len(tree.nodes) for one in rounds for row in one.trees.values() for tree in row.values()) - 1
        if largest > MOST_SHOWN:
            raise InputError(f"a tree of {largest} nodes can't be shown, {MOST_SHOWN} can: record a smaller budget")
        self._shown = trace
        with self.hold_sync():
            self.prompt, self.round, self.step, self.selected = 0, 0, WHOLE, {}
            self.budget = trace.settings.budget if self._budget is None else self._budget
            self.candidates = trace.settings.candidates
            self.trace = trace.to_json()

    def turn_to(self, prompt: str, max_new_tokens: int = LIVE_TOKENS) -> None:
        """Show the rounds of this prompt: the trace's where it has some, else those of an answer given now.

        The first model answers, and this waits for it. Raises InputError where there is none, or where it can't.
        """
        recorded = [one.prompt for one in self._shown.prompts] if self.trace else []
        if prompt in recorded:
            self.prompt, self.round, self.step, self.selected = recorded.index(prompt), 0, WHOLE, {}
            return
        if not self.models:
            raise InputError(f"no rounds of the prompt {prompt!r} are recorded, and there is no model to answer it")
        self.run(prompt, self.models[0], max_new_tokens)
        self.wait()
        if self.status["state"] != "done":
            raise InputError(self.status["message"])

    # --- without a kernel ---

    def export_html(self, path: str | Path) -> Path:
        """Write one file that shows the trace from disk, without a network, and return its path.

        Texts in it are data: they stand in a block that no browser runs, and only the page's own script may run.
        Raises InputError where there is nothing to show, or the file can't be written.
        """
        shown, path = self._trace(), Path(path)
        view = {name: getattr(self, name) for name in _VIEW} | {"trace": self.trace, "selected": self.selected}
        data = json.dumps(view | {"models": [], "status": IDLE}, separators=(",", ":"), allow_nan=False)
        for character in "<>&\u2028\u2029":  # inside a text of JSON each may be written as its number
            data = data.replace(character, f"\\u{ord(character):04x}")
        title = f"Tree theatre: {shown.target} and {shown.drafter}"
        script = f"{_JS}\n{_START}"
        write_text(
            path,
            _PAGE.substitute(
                title=html.escape(title), style=_CSS, script=script, data=data,
                script_hash=_hash(script), style_hash=_hash(_CSS),
            ),
        )  # fmt: skip
        return path

    def twin(self) -> Picture:
        """What is shown now as a still picture: the trees of the round at this M and budget, at temperature 0."""
        shown = self._trace()
        prompt = shown.prompts[min(max(self.prompt, 0), len(shown.prompts) - 1)]
        one = prompt.rounds[min(max(self.round, 0), len(prompt.rounds) - 1)]
        count = min(shown.candidates, key=lambda m: abs(m - self.candidates))
        budget = min(max(self.budget, 0), shown.settings.budget)
        stills = [_still(one, method.name, count, budget) for method in shown.methods]
        titles, word = [method.title for method in shown.methods], shown.vocabulary.__getitem__
        trees, accepted = [still.tree for still in stills], [still.accepted for still in stills]
        figure = compare_trees(trees, titles, accepted, word, [still.bonus for still in stills])
        parts = zip(titles, stills, strict=True)
        alt = " ".join(f"{title}. {describe(s.tree, word, s.accepted, s.bonus)}" for title, s in parts)
        return show(figure, alt, CAPTION, TWIN_DPI, TWIN_COLOURS)

    def _trace(self) -> Trace:
        if not self.trace:
            raise InputError("the theatre has no trace yet: give it one, or run a prompt first")
        return self._shown

    # --- with a kernel ---

    @property
    def running(self) -> bool:
        """Whether a prompt is being answered now."""
        return self._thread.is_alive()

    def run(self, prompt: str, model: str, max_new_tokens: int = LIVE_TOKENS) -> None:
        """Begin to answer a prompt, in a thread; `status` tells how far it is, and `trace` is the answer's then.

        Raises InputError for an empty prompt, an unknown model, a number out of range, and while another runs.
        """
        if self.running:
            raise InputError("a prompt is being answered: cancel it or wait")
        if not prompt.strip():
            raise InputError("the prompt is empty: type a question")
        if model not in self._loads:
            raise InputError(f"no model {model!r}; there are {', '.join(self._loads) or 'none'}")
        if not 1 <= max_new_tokens <= MOST_TOKENS:
            raise InputError(f"{max_new_tokens} new tokens: give 1 to {MOST_TOKENS}")
        self._stop.clear()
        self._tell("running", f"{model} is loading", total=max_new_tokens)
        self._thread = Thread(target=self._answer, args=(prompt, model, max_new_tokens), daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Stop after the round that is being decoded now; what was shown before stays."""
        self._stop.set()

    def wait(self, seconds: float | None = None) -> None:
        """Return once nothing runs any more, or after so many seconds."""
        if self.running:
            self._thread.join(seconds)

    def _told(self, _: Any, message: Any, __: Any) -> None:
        """A button was pressed. Whatever comes in place of a request is answered by a line, never by a crash."""
        asked = message if isinstance(message, dict) else {}
        if asked.get("do") == "cancel":
            return self.cancel()
        prompt, model, length = (asked.get(name) for name in ("prompt", "model", "max_new_tokens"))
        if not isinstance(prompt, str) or not isinstance(model, str) or type(length) is not int:
            return self._tell("failed", "give a prompt, a model and a whole number of new tokens")
        try:
            self.run(prompt, model, length)
        except InputError as error:
            if not self.running:
                self._tell("failed", str(error))

    def _answer(self, prompt: str, model: str, max_new_tokens: int) -> None:
        from ..decode import Settings
        from ..prompts import PromptRow
        from ..tracer import record

        try:
            if model not in self._loaded:
                self._loaded[model] = self._loads[model]()
            target, drafter = self._loaded[model]
            settings = Settings(budget=max(LIVE_BUDGET, self._budget or 0), max_new_tokens=max_new_tokens)

            def on_round(tokens: list[int]) -> None:
                self._tell("running", f"{len(tokens)} tokens", target.decode(tokens), len(tokens), max_new_tokens)
                if self._stop.is_set():
                    raise _Cancelled

            trace = record([PromptRow("yours", "yours", (prompt,))], target, drafter, settings, on_round=on_round)
            self.show(trace)
            done = sum(len(one.emitted) for one in trace.prompts[0].rounds) + 1
            self._tell("done", f"{done} tokens in {len(trace.prompts[0].rounds)} rounds", "", done, done)
        except _Cancelled:
            self._tell("cancelled", "cancelled; what was shown before is shown still")
        except Exception as error:  # a thread's exception would be seen by nobody
            self._tell("failed", str(error).replace("\n", " ") or type(error).__name__)

    def _tell(self, state: str, message: str, text: str = "", done: int = 0, total: int = 0) -> None:
        self.status = {"state": state, "message": message, "text": text, "done": done, "total": total}


class _Cancelled(Exception):
    """The reader has pressed Cancel."""


def embedded_models(names: Sequence[str] = ("smollm2",)) -> dict[str, Load]:
    """Loaders of embedded targets with the Domino drafters that are shipped with them, by the target's name."""
    from ..checkpoints import load_drafter, load_target

    def load(name: str) -> tuple[Target, Drafter]:
        target = load_target(name)
        return target, load_drafter(f"{name}-domino", target)

    return {name: lambda name=name: load(name) for name in names}  # type: ignore[misc]


@dataclass(frozen=True)
class _Still:
    """The first nodes of a traced tree, the rows of it that the target accepts at T = 0, and the token after them."""

    tree: DraftTree
    accepted: list[int]
    bonus: int


def _still(one: TracedRound, method: str, count: int, budget: int) -> _Still:
    full, nodes = one.trees[method][count], one.nodes
    order, scores = full.nodes[: budget + 1], full.scores[: budget + 1]
    rows = {node: row for row, node in enumerate(order)}
    tree = DraftTree.from_lists(
        [nodes.tokens[node] for node in order],
        [-1, *(rows[nodes.parents[node]] for node in order[1:])],
        [nodes.depths[node] for node in order],
        [min(score, 0.0) for score in scores],
    )
    accepted: list[int] = []
    row: int | None = 0
    while row is not None:
        following = one.choice[order[row]]
        row = tree.child(row, following)
        accepted += [] if row is None else [row]
    return _Still(tree, accepted, following)


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_START = """
const here = document.getElementById("theatre");
render({ model: staticModel(JSON.parse(document.getElementById("data").textContent)), el: here });
"""
_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; base-uri 'none'; form-action 'none'; \
script-src 'sha256-$script_hash'; style-src 'sha256-$style_hash'">
<title>$title</title>
<style>$style</style>
</head>
<body class="dt-page">
<main>
<h1>$title</h1>
<noscript><p>This page draws its trees by a script of its own, which is switched off here.</p></noscript>
<div id="theatre"></div>
</main>
<script type="application/json" id="data">$data</script>
<script type="module">$script</script>
</body>
</html>
""")
