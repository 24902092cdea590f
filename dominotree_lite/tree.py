"""A draft tree as flat arrays, and what can be read off it. It knows no model and not how the tree grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError

_FIELDS = {"tokens": np.int64, "parents": np.int64, "depths": np.int64, "log_probs": np.float64}
_SLACK = 1e-6  # a child may outscore its parent by no more than rounding


@dataclass(frozen=True, eq=False)
class DraftTree:
    """N drafted nodes below an anchor. Index 0 is the root; every parent precedes its children.

    The arrays are read-only copies. `log_probs` holds scores: the sum of the natural-log probabilities that
    the drafter gave the tokens of the path, so exp(score) is its belief that the whole path is right. Raises
    InputError, with one line, for arrays that are not such a tree.
    """

    tokens: NDArray[np.int64]  # [N+1], the anchor first
    parents: NDArray[np.int64]  # [N+1], -1 for the root
    depths: NDArray[np.int64]  # [N+1], 0 for the root
    log_probs: NDArray[np.float64]  # [N+1], 0.0 for the root

    def __post_init__(self) -> None:
        for name, dtype in _FIELDS.items():
            array = np.array(getattr(self, name), dtype=dtype)
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        _check(self)

    @classmethod
    def from_lists(
        cls, tokens: Sequence[int], parents: Sequence[int], depths: Sequence[int], log_probs: Sequence[float]
    ) -> DraftTree:
        """The tree whose arrays hold these numbers, the root first."""
        return cls(
            np.array(tokens, np.int64),
            np.array(parents, np.int64),
            np.array(depths, np.int64),
            np.array(log_probs, np.float64),
        )

    @classmethod
    def root_only(cls, anchor: int) -> DraftTree:
        """The tree with no drafted node: verifying it yields exactly one token."""
        return cls.from_lists([anchor], [-1], [0], [0.0])

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> DraftTree:
        """The tree that `to_json` wrote. Raises InputError on a missing, extra or mistyped field."""
        if not isinstance(record, dict) or set(record) != set(_FIELDS):
            raise InputError(f"a draft tree has exactly the fields {', '.join(_FIELDS)}")
        for name, values in record.items():
            allowed = (float, int) if name == "log_probs" else (int,)
            if not isinstance(values, list) or any(type(v) not in allowed for v in values):
                raise InputError(f"draft tree: {name} is not a list of {allowed[0].__name__}s")
        return cls.from_lists(**record)

    def to_json(self) -> dict[str, Any]:
        """The four arrays as plain lists, the root first."""
        return {name: getattr(self, name).tolist() for name in _FIELDS}

    def __len__(self) -> int:
        """Drafted nodes N. The budget counts these and not the root."""
        return len(self.tokens) - 1

    @property
    def anchor(self) -> int:
        """The committed token at the root."""
        return int(self.tokens[0])

    @cached_property
    def _index(self) -> list[dict[int, int]]:
        index: list[dict[int, int]] = [{} for _ in self.tokens]
        for node in range(1, len(self.tokens)):
            index[int(self.parents[node])][int(self.tokens[node])] = node
        return index

    def children(self, node: int) -> list[int]:
        """The children of a node, in the order of the tree: best first."""
        return list(self._index[node].values())

    def child(self, node: int, token: int) -> int | None:
        """The child of a node that carries this token, or None. One dictionary look-up."""
        return self._index[node].get(token)

    def path(self, node: int) -> list[int]:
        """The nodes from depth 1 down to `node`, the root left out; empty for the root."""
        nodes = []
        while node:
            nodes.append(node)
            node = int(self.parents[node])
        return nodes[::-1]

    def path_tokens(self, node: int) -> list[int]:
        """The tokens of `path(node)`: what is committed after the anchor if `node` is accepted last."""
        return [int(self.tokens[n]) for n in self.path(node)]

    def ancestors(self) -> NDArray[np.bool_]:
        """[N+1, N+1]: row i is True at i itself and at every node above it, the root included."""
        rows = np.eye(len(self.tokens), dtype=np.bool_)
        for node, parent in enumerate(self.parents[1:].tolist(), start=1):
            rows[node] |= rows[parent]  # the parent's row is complete, since parents come first
        return rows

    def prefix(self, budget: int) -> DraftTree:
        """The first `budget` nodes: of a best-first tree, the best-first tree of that budget."""
        if budget < 0:
            raise InputError(f"budget {budget} is negative: give the number of drafted nodes, 0 or more")
        return DraftTree(*(getattr(self, name)[: budget + 1] for name in _FIELDS))

    def expected_accepted(self) -> float:
        """Expected accepted length if the drafter's probabilities were the target's: the sum of exp(score).

        A node is accepted exactly when the target's text follows its whole path (DDTree, arXiv 2604.12989,
        Proposition 1).
        """
        return float(np.exp(self.log_probs[1:]).sum())


def _check(tree: DraftTree) -> None:
    size = tree.tokens.size
    if any(getattr(tree, name).shape != (size,) for name in _FIELDS) or size == 0:
        raise InputError("draft tree: the four arrays must be flat, equally long, and hold at least the root")
    if tree.parents[0] != -1 or tree.depths[0] != 0 or tree.log_probs[0] != 0.0:
        raise InputError("draft tree: node 0 is the root, with parent -1, depth 0 and log-probability 0")
    parents, below = tree.parents[1:], slice(1, None)
    _refuse((parents < 0) | (parents >= np.arange(1, size)), "does not come after its parent")
    _refuse(tree.depths[below] != tree.depths[parents] + 1, "is not one deeper than its parent")
    _refuse(~np.isfinite(tree.log_probs[below]), "has a log-probability that is not finite")
    _refuse(tree.log_probs[below] > tree.log_probs[parents] + _SLACK, "scores above its parent")
    keys = np.stack([parents, tree.tokens[below]])
    if np.unique(keys, axis=1).shape[1] != size - 1:
        raise InputError("draft tree: two children of one node carry the same token")


def _refuse(bad: NDArray[np.bool_], what: str) -> None:
    if bad.any():
        raise InputError(f"draft tree: node {int(bad.argmax()) + 1} {what}")
