"""Reading what a grid wrote: tau with intervals, differences between variants, curves. It trains nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..intervals import Interval, Statistic, difference_of_ratios, over_groups, ratio_of_sums


@dataclass(frozen=True)
class Results:
    """Records of `Ablation.run`. Runs may come from several calls: each carries the lengths of its own texts."""

    records: list[dict[str, Any]]

    @classmethod
    def load(cls, *files: Path) -> Results:
        """From files `results.jsonl`. Raises InputError naming the one that can't be read."""
        return cls([record for path in files for record in _records(path)])

    @property
    def variants(self) -> list[str]:
        """Names, in order of their first run."""
        return list(dict.fromkeys(record["variant"] for record in self.records))

    def runs(self, variant: str) -> list[dict[str, Any]]:
        """A variant's records, one a seed. Raises InputError for an unknown one."""
        found = [record for record in self.records if record["variant"] == variant]
        if not found:
            raise InputError(f"no variant {variant!r} in these results; there are {', '.join(self.variants)}")
        return found

    def tau(self, variant: str, method: str, texts: str = "prompts") -> Interval:
        """Tokens a round, pooled over texts ("prompts" or "held-out") and seeds; the interval is over texts."""
        return _over_texts([_sums(self.runs(variant), method, texts)], ratio_of_sums(0, 1))

    def difference(
        self, first: str, second: str, method: str, texts: str = "prompts", second_method: str | None = None
    ) -> Interval:
        """tau of one variant minus that of another, on the same texts and as many seeds of each.

        A drafter without a head knows other methods: `second_method`, by default the first's, is the second's.
        """
        runs, others = self.runs(first), self.runs(second)
        seeds = min(len(runs), len(others))
        pair = [_sums(runs[:seeds], method, texts), _sums(others[:seeds], second_method or method, texts)]
        return _over_texts(pair, difference_of_ratios((0, 1), (2, 3)))

    def held_out(self, variant: str, name: str) -> float:
        """Mean over seeds of `base`, `corrected`, `base_tau` or `tau` at random anchors of held-out rows."""
        runs = self.runs(variant)
        return sum(run["held_out"][name] for run in runs) / len(runs)


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not the results of a grid ({error})") from error


def _over_texts(sums: Sequence[NDArray[np.float64]], statistic: Statistic) -> Interval:
    return over_groups([np.concatenate(sums, axis=1)], statistic)


def _sums(runs: Sequence[dict[str, Any]], method: str, texts: str) -> NDArray[np.float64]:
    """[texts, 2]: tokens and rounds of every text, over all runs."""
    pairs = [(run["tokens"][texts], run["rounds"][texts][method]) for run in runs]
    return np.asarray(pairs, float).sum(axis=0).T
