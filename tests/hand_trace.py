"""A trace made by hand: random laws in place of models, and a builder that sorts in place of a heap.

What it holds is known from outside: `belief` and `law` give every number anew. Texts can be chosen, so that hostile
ones get everywhere that a text can stand.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

METHODS = {"marginal": "marginal", "greedypath": "greedy path", "dominotree": "conditional"}
TEMPERATURES = [0.5, 1.0, 1.5]
CANDIDATES = [4, 8]
Path = tuple[int, ...]
HOSTILE = [
    " plain",
    "\"quoted\" 'twice'",
    "</script><script>window.broken=1</script>",
    "<img src=x onerror=window.broken=1>",
    "&lt;b&gt;&amp;",
    "\u0301\u0323marks",
    "\u05e9\u05dc\u05d5\u05dd\u202e rtl",
    "\n\t\n",
    "\U0001f469\u200d\U0001f680",
    "\u2028\u2029\x00\\u003c",
    "{{template}} ${js} `tick`",
    "",
]


@cache
def belief(method: str, count: int, path: Path, vocabulary: int, horizon: int) -> list[tuple[int, float]]:
    """Children of a path, best first, by a drafter: (token, log-probability). The marginal one hears the depth only."""
    heard = (len(path),) if method == "marginal" else (len(path), *(path[:1] if method == "greedypath" else path))
    if len(path) == horizon:
        return []
    logits = np.random.default_rng([len(method), *heard]).normal(0, 2.5, vocabulary)[:count]
    logs = logits - np.log(np.exp(logits).sum())
    return sorted(((token, float(p)) for token, p in enumerate(logs)), key=lambda pair: -pair[1])


@cache
def law(path: Path, vocabulary: int) -> list[float]:
    """Raw logits of the target after a path."""
    own = np.random.default_rng([6, *path]).normal(0, 1.0, vocabulary)
    drafted = np.random.default_rng([len("dominotree"), len(path), *path]).normal(0, 2.5, vocabulary)
    return [round(float(x), 4) for x in own + drafted]


def best_first(method: str, count: int, budget: int, vocabulary: int, horizon: int) -> list[tuple[Path, float, list]]:
    """(path, score, pushed) in the order taken, the root first; by sorting all that waits, each time."""
    places: dict[Path, int] = {}
    waiting: list[tuple[float, Path]] = [(0.0, ())]
    taken: list[tuple[Path, float, list]] = []

    def children(path: Path) -> list[tuple[int, float]]:
        return belief(method, count, path, vocabulary, horizon)

    while waiting and len(taken) <= budget:
        waiting.sort(key=lambda entry: (-entry[0], len(entry[1]), entry[1]))
        score, path = waiting.pop(0)
        places[path] = len(taken)
        pushed = []
        if first := children(path)[:1]:
            pushed.append(((*path, first[0][0]), score + first[0][1]))
        if path:
            above = children(path[:-1])
            rank = [token for token, _ in above].index(path[-1])
            parent = next(s for p, s, _ in taken if p == path[:-1])
            pushed += [((*path[:-1], token), parent + p) for token, p in above[rank + 1 : rank + 2]]
        waiting += [(value, where) for where, value in pushed]
        taken.append((path, score, [[places[w[:-1]], w[-1], round(v, 4)] for w, v in pushed]))
    return taken


def one_round(anchor: int, start: int, first: int, budget: int, vocabulary: int, horizon: int) -> dict[str, Any]:
    grown = {
        name: {m: best_first(name, m, budget, vocabulary, horizon) for m in CANDIDATES} for name in METHODS
    }  # every round's laws begin anew below its anchor
    union: dict[Path, int] = {(): 0}
    for name in METHODS:
        for m in CANDIDATES:
            for path, _, _ in grown[name][m]:
                union.setdefault(path, len(union))
    paths = list(union)
    raw = [0.0] + [law(path[:-1], vocabulary)[path[-1]] for path in paths[1:]]
    inner = sorted({union[path[:-1]] for path in paths[1:]})

    def normaliser(node: int, t: float) -> float:
        return float(np.log(np.exp(np.array(law(paths[node], vocabulary)) / t).sum()))

    choice = [int(np.argmax(law(path, vocabulary))) for path in paths]

    def accepted(name: str, m: int) -> list[int]:
        kept, node, found = {union[path] for path, _, _ in grown[name][m]}, 0, []
        while (node := union.get((*paths[node], choice[node]), -1)) in kept:
            found.append(node)
        return found

    walks = {name: {str(m): accepted(name, m) for m in CANDIDATES} for name in METHODS}
    driven = walks["dominotree"][str(CANDIDATES[-1])]
    last = driven[-1] if driven else 0
    return {
        "start": start,
        "anchor": anchor,
        "context_length": first + start,
        "emitted": [paths[node][-1] for node in driven] + [choice[last]],
        "nodes": {
            "tokens": [anchor, *(path[-1] for path in paths[1:])],
            "parents": [-1, *(union[path[:-1]] for path in paths[1:])],
            "depths": [len(path) for path in paths],
        },
        "target": [0.0] + [
            round(min(raw[n] - normaliser(union[paths[n][:-1]], 1.0), 0.0), 4) for n in range(1, len(paths))
        ],
        "logits": raw,
        "log_normalisers": {str(n): [round(normaliser(n, t), 4) for t in TEMPERATURES] for n in inner},
        "choice": choice,
        "trees": {
            name: {
                str(m): {
                    "nodes": [union[path] for path, _, _ in steps],
                    "scores": [round(score, 4) for _, score, _ in steps],
                    "pushed": [pushed for _, _, pushed in steps],
                }
                for m, steps in row.items()
            }
            for name, row in grown.items()
        },
        "accepted": walks,
        "bonus": {
            name: {m: choice[path[-1] if path else 0] for m, path in row.items()} for name, row in walks.items()
        },
        "children": {
            str(n): {
                "tokens": [token for token, _ in belief("dominotree", 8, paths[n], vocabulary, horizon)],
                "marginal": [
                    round(dict(belief("marginal", 8, paths[n], vocabulary, horizon))[token], 4)
                    for token, _ in belief("dominotree", 8, paths[n], vocabulary, horizon)
                ],
                "conditional": [round(p, 4) for _, p in belief("dominotree", 8, paths[n], vocabulary, horizon)],
            }
            for n in inner
        },
    }  # fmt: skip


def hand_trace(
    budget: int = 16, rounds: int = 3, texts: Sequence[str] = HOSTILE, prompt: str = "Why?", horizon: int = 6
) -> dict[str, Any]:
    """A trace of one prompt as a JSON object; token i has the i-th text."""
    vocabulary, done, start, anchor = len(texts), [], 0, 0
    for _ in range(rounds):
        done.append(one_round(anchor, start, 7, budget, vocabulary, horizon))
        start, anchor = start + len(done[-1]["emitted"]), done[-1]["emitted"][-1]
    return {
        "format": "dominotree-trace",
        "version": 1,
        "target": "by hand",
        "drafter": "by hand, too",
        "settings": {
            "budget": budget, "candidates": CANDIDATES[-1], "child_cap": None, "temperature": 0.0,
            "max_new_tokens": start + 1, "seed": 0,
        },
        "temperatures": TEMPERATURES,
        "candidates": CANDIDATES,
        "vocabulary": {str(token): text for token, text in enumerate(texts)},
        "methods": [{"name": name, "title": title} for name, title in METHODS.items()],
        "prompts": [{"id": "one", "prompt": prompt, "rounds": done}],
    }  # fmt: skip


def expected_target(trace: dict[str, Any], order: Sequence[int], at: int, t: float) -> float:
    """Expected accepted length of the nodes `order` of round `at`, root first, by the target's own law."""
    nodes = trace["prompts"][0]["rounds"][at]["nodes"]
    size, total = len(trace["vocabulary"]), 0.0
    for node in order[1:]:
        path: list[int] = []
        while node:
            path.insert(0, nodes["tokens"][node])
            node = nodes["parents"][node]
        reach = 1.0
        for depth, token in enumerate(path):
            weights = [math.exp(x / t) for x in law(tuple(path[:depth]), size)]
            reach *= weights[token] / sum(weights)
        total += reach
    return total
