"""Reading what a grid wrote: tau with intervals, differences between variants, curves. It trains nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..intervals import Interval, pooled_tau, tau_difference


@dataclass(frozen=True)
class Results:
    """Records of `Ablation.run` and the texts they were measured on ("prompts", "held-out")."""

    records: list[dict[str, Any]]
    texts: dict[str, dict[str, list[Any]]]

    @classmethod
    def load(cls, records: Path, texts: Path) -> Results:
        """From `results.jsonl` and `texts.json`. Raises InputError naming the file that can't be read."""
        try:
            lines = records.read_text(encoding="utf-8").splitlines()
            return cls([json.loads(line) for line in lines], json.loads(texts.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise InputError(f"{records}, {texts}: not the results of a grid ({error})") from error

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
        """Tokens a round, pooled over texts and seeds; the interval is over texts."""
        runs = self.runs(variant)
        return pooled_tau(self._tokens(texts, len(runs)), _rounds(runs, method, texts))

    def difference(
        self, first: str, second: str, method: str, texts: str = "prompts", second_method: str | None = None
    ) -> Interval:
        """tau of one variant minus that of another, on the same texts and as many seeds of each.

        A drafter without a head knows other methods: `second_method`, by default the first's, is the second's.
        """
        runs, others = self.runs(first), self.runs(second)
        seeds = min(len(runs), len(others))
        a = _rounds(runs[:seeds], method, texts)
        b = _rounds(others[:seeds], second_method or method, texts)
        return tau_difference(self._tokens(texts, seeds), a, b)

    def held_out(self, variant: str, name: str) -> float:
        """Mean over seeds of `base`, `corrected`, `base_tau` or `tau` at random anchors of held-out rows."""
        runs = self.runs(variant)
        return sum(run["held_out"][name] for run in runs) / len(runs)

    def _tokens(self, texts: str, seeds: int) -> list[int]:
        return [seeds * tokens for tokens in self.texts[texts]["tokens"]]


def _rounds(runs: Sequence[dict[str, Any]], method: str, texts: str) -> list[int]:
    return [sum(each) for each in zip(*(run["rounds"][texts][method] for run in runs), strict=True)]
