"""Benchmarks of the hub by name, worded as the field words them. Needs the package `datasets`; knows no model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InputError
from .prompts import PromptRow

Row = dict[str, Any]
REASON = "\nPlease reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True)
class Benchmark:
    """Where a benchmark lies on the hub, and how one of its rows becomes the user's turns."""

    path: str
    split: str
    turns: Callable[[Row], Sequence[str]]
    config: str | None = None


def _reason(key: str) -> Callable[[Row], Sequence[str]]:
    return lambda row: [row[key] + REASON]


def _humaneval(row: Row) -> Sequence[str]:
    task = "Write a solution to the following problem and make sure that it passes the tests:"
    return [f"{task}\n```python\n{row['prompt']}\n```"]


def _mbpp(row: Row) -> Sequence[str]:
    return [f"{row['prompt']} Your code should pass these tests:\n\n" + "\n".join(row["test_list"])]


def _livecodebench(row: Row) -> Sequence[str]:
    task = "Write a correct Python program for this problem; it must pass all tests."
    given = row.get("starter_code")
    form = f"Start from this code:\n```python\n{given}\n```" if given else "Read from standard input, print the answer."
    return [f"{task}\n\nQuestion: {row['question_content']}\n\n{form}"]


def _alpaca(row: Row) -> Sequence[str]:
    more = f"\n\nInput:\n{row['input']}" if row.get("input") else ""
    return [row["instruction"] + more]


BENCHMARKS = {
    "gsm8k": Benchmark("openai/gsm8k", "test", _reason("question"), "main"),
    "math500": Benchmark("HuggingFaceH4/MATH-500", "test", _reason("problem")),
    "aime25": Benchmark("MathArena/aime_2025", "train", _reason("problem")),
    "humaneval": Benchmark("openai/openai_humaneval", "test", _humaneval),
    "mbpp": Benchmark("google-research-datasets/mbpp", "test", _mbpp, "sanitized"),
    "livecodebench": Benchmark("livecodebench/code_generation_lite", "test", _livecodebench),
    "mtbench": Benchmark("HuggingFaceH4/mt_bench_prompts", "train", lambda row: row["prompt"]),
    "alpaca": Benchmark("tatsu-lab/alpaca", "train", _alpaca),
}


def load_benchmarks(names: Sequence[str], folder: Path | None = None) -> list[PromptRow]:
    """All prompts of these benchmarks; `folder` holds copies of their data sets, each under the benchmark's name.

    Raises InputError for an unknown name, without `datasets`, without a network, and for rows that lack a field.
    """
    if strange := [name for name in names if name not in BENCHMARKS]:
        raise InputError(f"no benchmark {strange[0]!r}; there are {', '.join(BENCHMARKS)}")
    return [row for name in dict.fromkeys(names) for row in prompts_of(name, _rows(name, folder))]


def prompts_of(name: str, rows: Iterable[Row]) -> list[PromptRow]:
    """Rows of a benchmark as prompts, numbered from 0. Raises InputError for a row that lacks a field."""
    found = []
    for number, row in enumerate(rows):
        try:
            found.append(PromptRow(f"{name}-{number}", name, tuple(BENCHMARKS[name].turns(row))))
        except (KeyError, TypeError, InputError) as error:
            raise InputError(f"{name}, row {number}: not as this benchmark's rows are ({error})") from error
    return found


def _rows(name: str, folder: Path | None) -> Iterable[Row]:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise InputError(f"benchmarks of the hub need {error.name}: pip install datasets") from error
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # each of its retries would be a line
    one = BENCHMARKS[name]
    source, config = (str(folder / name), None) if folder else (one.path, one.config)
    datasets.disable_progress_bars()
    try:
        loaded: Iterable[Row] = datasets.load_dataset(source, config, split=one.split)
        return loaded
    except Exception as error:  # of the network, the hub, the file system or the format: none of them is ours
        raise InputError(
            f"benchmark {name}: {source} can't be loaded ({type(error).__name__}); connect to a network, "
            "or give a copy with --hub-folder"
        ) from error
