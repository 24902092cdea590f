"""Traces: rounds of real answers, written down so that a page can show them without any model.

A trace is one JSON object in UTF-8, without NaN or infinities, read by Python and by JavaScript alike; node
numbers and token ids that are keys are texts there. Log-probabilities are natural logs. Version 1:

    format, version         "dominotree-trace", 1
    target, drafter         their names
    settings                budget, candidates (M), child_cap (or null), temperature, max_new_tokens, seed
    temperatures            those that have log-normalisers
    candidates              every M that trees were grown for; the settings' own among them
    vocabulary              token id -> text, of every id that occurs
    methods                 name and title, in the order to show them
    prompts                 id, prompt (the text of the first turn) and rounds, one or more

A round:

    start                   the anchor's place among the new tokens
    anchor                  its id
    context_length          committed tokens before it: its position and its KV slot
    emitted                 ids that the round of `dominotree` added to the text
    nodes                   the union of all trees, root first: tokens, parents (-1 for the root), depths
    target [N+1]            log-probability at temperature 1 of a node's token under the target; root 0
    logits [N+1]            its raw logit; root 0
    log_normalisers         inner node -> one a temperature T: log p_T(child) = logit / T - log-normaliser
    choice [N+1]            the target's most likely token after each node
    trees                   method -> M -> nodes (of the union, best first), scores, and `pushed`: what each
                            pop put on the heap, as [position of the parent in this tree, token, score]
    accepted, bonus         method -> M -> the accepted nodes of the union, root left out; the token after them
    children                node -> at most 10 tokens, their log-probabilities before (`marginal`) and after
                            (`conditional`) the correction along the node's path

The first b nodes of a tree are the tree of budget b. Texts are data, never markup. This file knows no torch and
no model: `tracer.py` records traces, and `viz` shows them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .errors import InputError
from .files import write_text
from .strict import no_number, read, shown

FORMAT, VERSION = "dominotree-trace", 1
MOST_NODES, MOST_BYTES = 100_000, 64 * 2**20  # of all unions together; of a file
MOST_CHILDREN = 10
DRIVER = "dominotree"  # the method whose accepted tokens make the text
TITLES = {
    "marginal": "marginal: each depth on its own",
    "greedypath": "greedy path: corrected along one path",
    "dominotree": "dominotree: each node after its own path",
}
_SLACK = 1e-3  # numbers are rounded when they are stored


class Push(NamedTuple):
    """An entry of the heap: a node that could be taken next."""

    parent: int  # position in the tree's own order
    token: int
    score: float


@dataclass(frozen=True)
class Nodes:
    """The union of a round's trees as flat arrays, the root first."""

    tokens: list[int]
    parents: list[int]
    depths: list[int]


@dataclass(frozen=True)
class TracedTree:
    """One tree in the order in which its nodes were taken."""

    nodes: list[int]  # of the union
    scores: list[float]
    pushed: list[list[Push]]


@dataclass(frozen=True)
class TracedChildren:
    """Log-probabilities of a node's likeliest children, before and after the correction."""

    tokens: list[int]
    marginal: list[float]
    conditional: list[float]


@dataclass(frozen=True)
class TracedRound:
    """One round of one prompt; the fields are those of the format."""

    start: int
    anchor: int
    context_length: int
    emitted: list[int]
    nodes: Nodes
    target: list[float]
    logits: list[float]
    log_normalisers: dict[int, list[float]]
    choice: list[int]
    trees: dict[str, dict[int, TracedTree]]
    accepted: dict[str, dict[int, list[int]]]
    bonus: dict[str, dict[int, int]]
    children: dict[int, TracedChildren]


@dataclass(frozen=True)
class TracedPrompt:
    """A prompt and the rounds of its answer."""

    id: str
    prompt: str
    rounds: list[TracedRound]


@dataclass(frozen=True)
class TraceSettings:
    """How the text was decoded; units as in `decode.Settings`."""

    budget: int
    candidates: int
    child_cap: int | None
    temperature: float
    max_new_tokens: int
    seed: int


@dataclass(frozen=True)
class TracedMethod:
    """A method's name, and what to write above its tree."""

    name: str
    title: str


@dataclass(frozen=True)
class Trace:
    """All that a file holds. Raises InputError, in one line, for content that contradicts itself."""

    target: str
    drafter: str
    settings: TraceSettings
    temperatures: list[float]
    candidates: list[int]
    vocabulary: dict[int, str]
    methods: list[TracedMethod]
    prompts: list[TracedPrompt]

    def __post_init__(self) -> None:
        _check_head(self)
        for number, prompt in enumerate(self.prompts):
            for at, one in enumerate(prompt.rounds):
                _Check(self, one, f"prompts[{number}].rounds[{at}]").run()
            _check_sequence(prompt, f"prompts[{number}]")

    @property
    def size(self) -> int:
        """Nodes of all unions, the roots counted."""
        return sum(len(one.nodes.tokens) for prompt in self.prompts for one in prompt.rounds)

    def to_json(self) -> dict[str, Any]:
        """The object of the format, of plain types."""
        plain: dict[str, Any] = json.loads(self._text())
        return plain

    def _text(self) -> str:
        content = {"format": FORMAT, "version": VERSION} | dataclasses.asdict(self)
        return json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, content: Any) -> Trace:
        """The trace of such an object. Raises InputError, in one line that names the place, for anything else."""
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InputError(f"not a trace: give a JSON object whose format is {FORMAT!r}")
        if type(content.get("version")) is not int or content["version"] != VERSION:
            raise InputError(f"version {shown(content.get('version'))}; only version {VERSION} can be read")
        fields = {key: value for key, value in content.items() if key not in ("format", "version")}
        trace: Trace = read(cls, fields)
        return trace

    def save(self, path: str | Path) -> None:
        """Write the file, whole or not at all. Raises InputError where it can't be written or grows too large."""
        text = self._text() + "\n"
        if len(text.encode()) > MOST_BYTES:
            raise InputError(f"{path}: the trace exceeds {MOST_BYTES >> 20} MiB: record fewer rounds or less budget")
        write_text(Path(path), text)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """The trace in a file. Raises InputError, in one line with the file and what is wrong, for a bad one."""
        try:
            with open(path, "rb") as file:
                data = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise InputError(f"{path}: can't be read ({error.strerror}): give a file of `dominotree trace`") from None
        if len(data) > MOST_BYTES:
            raise InputError(f"{path}: larger than {MOST_BYTES >> 20} MiB, so no trace")
        try:
            return cls.from_json(json.loads(data.decode("utf-8"), parse_constant=no_number))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except (ValueError, RecursionError) as error:  # bytes that are not UTF-8 are a ValueError, too
            raise InputError(f"{path}: not JSON in UTF-8 ({error}): give a file of `dominotree trace`") from None


# --- Sense: what the numbers must be to each other -----------------------------------------------------------


def _check_head(trace: Trace) -> None:
    used, names = trace.settings, [method.name for method in trace.methods]
    least = (("budget", 0), ("candidates", 1), ("child_cap", 1), ("temperature", 0), ("max_new_tokens", 0), ("seed", 0))
    for field, smallest in least:
        value = getattr(used, field)
        if value is not None and value < smallest:
            raise InputError(f"settings.{field} is {value}: give {smallest} or more")
    if DRIVER not in names or len(set(names)) < len(names) or not set(names) <= set(TITLES):
        raise InputError(f"methods are {shown(names)}: give {DRIVER} and others of {', '.join(TITLES)}, each once")
    for field, values in (("temperatures", trace.temperatures), ("candidates", trace.candidates)):
        if not values or values != sorted(set(values)) or values[0] <= 0:
            raise InputError(f"{field} are {shown(values)}: give numbers above 0 in ascending order")
    if used.candidates not in trace.candidates:
        raise InputError(f"settings.candidates {used.candidates} is none of {shown(trace.candidates)}")
    ids = [prompt.id for prompt in trace.prompts]
    if not ids or len(set(ids)) < len(ids):
        raise InputError("prompts: give one or more, with ids that differ")
    if trace.size > MOST_NODES:
        raise InputError(f"{trace.size:,} nodes: a trace has {MOST_NODES:,} at most")


def _check_sequence(prompt: TracedPrompt, where: str) -> None:
    """Each round goes on where the one before it ended."""
    if not prompt.rounds:
        raise InputError(f"{where} has no round")
    before = prompt.rounds[0].context_length
    start, anchor = 0, prompt.rounds[0].anchor
    for at, one in enumerate(prompt.rounds):
        if (one.start, one.anchor, one.context_length) != (start, anchor, before + start):
            raise InputError(f"{where}.rounds[{at}] does not go on where the round before it ended")
        start, anchor = start + len(one.emitted), one.emitted[-1]


@dataclass(frozen=True)
class _Check:
    """One round against the rules of the format."""

    trace: Trace
    round: TracedRound
    where: str

    def run(self) -> None:
        self._union()
        self._answers()
        wanted = {method.name for method in self.trace.methods}
        for field in ("trees", "accepted", "bonus"):
            table = getattr(self.round, field)
            self._need(set(table) == wanted, f"{field} is not for exactly the methods {', '.join(sorted(wanted))}")
            for name, row in table.items():
                each = set(row) == set(self.trace.candidates)
                self._need(each, f"{field}.{name} is not for exactly the candidates {shown(self.trace.candidates)}")
        for name, row in self.round.trees.items():
            for count, tree in row.items():
                self._tree(tree, f"trees.{name}[{count}]")
                self._walk(tree, self.round.accepted[name][count], self.round.bonus[name][count], name, count)
        self._children()
        if missing := set(self._ids()) - self.trace.vocabulary.keys():
            raise InputError(f"{self.where}: token {min(missing)} is not in the vocabulary")

    def _need(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise InputError(f"{self.where}.{otherwise}")

    def _union(self) -> None:
        nodes, one = self.round.nodes, self.round
        size = len(nodes.tokens)
        columns = (nodes.parents, nodes.depths, one.target, one.logits, one.choice)
        self._need(size > 0 and all(len(c) == size for c in columns), "nodes and what belongs to them differ in length")
        root = (nodes.tokens[0], nodes.parents[0], nodes.depths[0], one.target[0], one.logits[0])
        self._need(root == (one.anchor, -1, 0, 0.0, 0.0), "nodes: node 0 is not the anchor with parent -1 and zeros")
        for node, parent in enumerate(nodes.parents[1:], start=1):
            self._need(0 <= parent < node, f"nodes: node {node} does not come after its parent")
            self._need(nodes.depths[node] == nodes.depths[parent] + 1, f"nodes: node {node} has a wrong depth")
        paths = set(zip(nodes.parents, nodes.tokens, strict=True))
        self._need(len(paths) == size, "nodes: two children of one node carry the same token")

    def _answers(self) -> None:
        one, inner = self.round, set(self.round.nodes.parents[1:])
        self._need(set(one.log_normalisers) == inner, "log_normalisers is not for exactly the nodes that have children")
        count = len(self.trace.temperatures)
        self._need(
            all(len(row) == count for row in one.log_normalisers.values()), f"log_normalisers: give {count} each"
        )
        self._need(max(one.target) <= 0, "target has a log-probability above 0")
        self._need(min(one.start, one.context_length - 1) >= 0, "start or context_length is too small")

    def _tree(self, tree: TracedTree, name: str) -> None:
        size, parents = len(tree.nodes), self.round.nodes.parents
        self._need(size == len(tree.scores) == len(tree.pushed), f"{name}: nodes, scores and pushed differ in length")
        self._need(
            1 <= size <= self.trace.settings.budget + 1, f"{name} has {size} nodes: more than the budget, or none"
        )
        self._need(tree.nodes[0] == 0 == tree.scores[0], f"{name} does not begin with the root, with score 0")
        waiting: dict[tuple[int, int], float] = {(-1, self.round.anchor): 0.0}
        places: dict[int, int] = {-1: -1}
        for at, (node, score) in enumerate(zip(tree.nodes, tree.scores, strict=True)):
            self._need(0 <= node < len(parents) and node not in places, f"{name}: node {node} is not there, or twice")
            parent = places.get(parents[node])
            entry = (-2 if parent is None else parent, self.round.nodes.tokens[node])
            self._need(entry in waiting, f"{name}: position {at} is taken, but was never pushed")
            close = abs(waiting.pop(entry) - score) <= _SLACK
            self._need(
                close and score <= tree.scores[at - 1 if at else 0] + _SLACK, f"{name}: position {at} scores wrong"
            )
            places[node] = at
            for push in tree.pushed[at]:
                fresh = 0 <= push.parent <= at and push[:2] not in waiting and push.score <= score + _SLACK
                self._need(fresh and len(tree.pushed[at]) <= 2, f"{name}: position {at} pushes what it can't")
                waiting[push.parent, push.token] = push.score

    def _walk(self, tree: TracedTree, accepted: list[int], bonus: int, name: str, count: int) -> None:
        nodes, kept, where = self.round.nodes, set(tree.nodes), f"accepted.{name}[{count}]"
        last = 0
        greedy = self.trace.settings.temperature == 0
        for node in accepted:
            self._need(node in kept and nodes.parents[node] == last, f"{where} is no path of its tree")
            self._need(
                not greedy or nodes.tokens[node] == self.round.choice[last], f"{where} is not what the target chose"
            )
            last = node
        ends = not any(nodes.parents[node] == last and nodes.tokens[node] == bonus for node in tree.nodes)
        self._need(
            ends and (not greedy or bonus == self.round.choice[last]), f"bonus.{name}[{count}] is not what follows"
        )
        if (name, count) == (DRIVER, self.trace.settings.candidates):
            emitted = self.round.emitted
            whole = [*(nodes.tokens[node] for node in accepted), bonus]
            self._need(bool(emitted) and whole[: len(emitted)] == emitted, "emitted is not what was accepted")

    def _children(self) -> None:
        for node, row in self.round.children.items():
            where, size = f"children[{node}]", len(row.tokens)
            self._need(node < len(self.round.nodes.tokens), f"{where} is of a node that is not there")
            same = size == len(row.marginal) == len(row.conditional) == len(set(row.tokens))
            self._need(
                same and size <= MOST_CHILDREN, f"{where}: give {MOST_CHILDREN} tokens at most, with both numbers"
            )
            self._need(max([*row.marginal, *row.conditional], default=0) <= 0, f"{where} has a log-probability above 0")

    def _ids(self) -> Iterator[int]:
        yield from token_ids(self.round)


def token_ids(one: TracedRound) -> Iterator[int]:
    """Every token id that occurs in a round, some of them often."""
    yield from (*one.emitted, *one.nodes.tokens, *one.choice)
    for row in one.trees.values():
        for tree in row.values():
            yield from (push.token for pushes in tree.pushed for push in pushes)
    for bonuses in one.bonus.values():
        yield from bonuses.values()
    for children in one.children.values():
        yield from children.tokens


def rounded(values: Sequence[float]) -> list[float]:
    """As a trace stores numbers: four decimals, and no minus before a zero."""
    return [round(value, 4) + 0.0 for value in values]
