"""Medians of every stage of a round, by builder, budget, context and candidates, beside what the card can do.

    python -m dominotree_lite.cuda.benchmark --out benchmark.json --only qwen3-4b:builders

It runs in pieces, `MODEL:PIECE`, and writes the file after each; a piece that is in the file already is measured
again and replaced, all others are kept. A piece that fails says so and the next one runs. Qwen3's shapes have random
weights (shapes.py). Times are milliseconds unless a name says otherwise.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from ..build import heap
from ..decode import decode
from ..drafter import ContextCache, Draft
from ..files import write_json
from ..methods import Settings
from ..scoring import ConditionalScorer
from ..target import Context
from ..tree import DraftTree
from .builders import FrontierGraph, HeapGraph
from .graphs import wait
from .lanes import fused_lanes, lanes_for
from .shapes import SIZES, Pair, load_pair
from .stages import Stages

MODELS = ("smollm2", "qwen3-4b", "qwen3-8b")
Row = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """What is varied, and how often each is run."""

    budgets: tuple[int, ...]
    contexts: tuple[int, ...]
    candidates: tuple[int | None, ...]
    repeats: int


def median_ms(run: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Of wall time, the device waited for, after one run that does not count."""
    times = []
    for _ in range(repeats + 1):
        wait(device)
        began = time.perf_counter()
        run()
        wait(device)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[1:])


# --- Pieces: each yields rows as they are ready ------------------------------------------------------------------


def ceilings(pair: Pair, grid: Grid) -> Iterator[Row]:
    """Copy bandwidth, counting bytes read and written, and the weights' bytes over it."""
    device = pair.target.device
    source = torch.empty(2**30 if device.type == "cuda" else 2**24, dtype=torch.uint8, device=device)
    copied = torch.empty_like(source)
    milliseconds = median_ms(lambda: copied.copy_(source), grid.repeats, device)
    bandwidth = 2 * source.numel() / milliseconds * 1000
    for name, module in (("target", pair.target.model), ("drafter", pair.drafter.model)):
        size = sum(weight.numel() * weight.element_size() for weight in module.parameters())
        yield {"model": name, "bytes": size, "copy_bytes_per_second": bandwidth, "read_ms": 1000 * size / bandwidth}


def steps(pair: Pair, grid: Grid) -> Iterator[Row]:
    """An autoregressive step: eager, and captured (whole, and its target pass alone)."""
    for length in grid.contexts:
        row: Row = {"context": length}
        context = Context()
        prompt = prompt_of(pair, length)
        features = pair.target.prefill(context, prompt).features
        row["eager"] = eager_step(pair, context, length, grid.repeats)
        stages = Stages(pair.target, None, Settings("ar"), None)
        stages.prepare(context, features, length + 8)
        row |= {f"captured_{name}": value for name, value in round_times(stages, length, grid.repeats).items()}
        yield row


def rounds(pair: Pair, grid: Grid) -> Iterator[Row]:
    """Every stage of the graph engine's rounds, and the eager engine's beside them."""
    for length in grid.contexts:
        context = Context()
        features = pair.target.prefill(context, prompt_of(pair, length), pair.drafter.config.target_layer_ids).features
        for budget in grid.budgets:
            for candidates in grid.candidates:
                settings = Settings(budget=budget, candidates=candidates)
                stages = Stages(pair.target, pair.drafter, settings, lanes_for(pair.drafter, settings))
                stages.prepare(context, features, length + 2 * pair.drafter.horizon)
                row: Row = {"engine": "graph", "context": length, "budget": budget, "candidates": candidates}
                yield row | round_times(stages, length, grid.repeats)
                del stages
                gc.collect()


def eager_rounds(pair: Pair, grid: Grid) -> Iterator[Row]:
    """Stages of the eager engine's rounds, as `decode` times them."""
    for length in grid.contexts:
        for budget in grid.budgets:
            settings = Settings(budget=budget, candidates=grid.candidates[0], max_new_tokens=40)
            result = decode(prompt_of(pair, length), pair.target, pair.drafter, settings)
            last = length + 40 - pair.drafter.horizon - 1  # rounds that start later are not drafted in full
            done = [one for one in result.rounds[1:] if one.start < last]
            names = ("draft", "build", "verify", "commit")
            stages = {name: 1000 * statistics.median(getattr(r.seconds, name) for r in done) for name in names}
            total = 1000 * statistics.median(sum(getattr(r.seconds, name) for name in names) for r in done)
            row = {"engine": "eager", "context": length, "budget": budget, "candidates": grid.candidates[0]}
            yield row | stages | {"round": total, "depth": mean_depth(done[-1].tree)}


def builders(pair: Pair, grid: Grid) -> Iterator[Row]:
    """The conditional tree of one draft, results on the host, by every builder; the eager heap's is the measure."""
    draft, anchor = draft_of(pair), 7
    for candidates in grid.candidates:
        for budget in grid.budgets:
            yield from builders_of(pair, draft, anchor, budget, candidates, grid.repeats)


PIECES = {"ceilings": ceilings, "builders": builders, "steps": steps, "rounds": rounds, "eager-rounds": eager_rounds}


# --- What they are made of ---------------------------------------------------------------------------------------


def prompt_of(pair: Pair, length: int) -> list[int]:
    """So many ids: text for a model that reads it, chance for one that doesn't."""
    if pair.target.tokenizer is None:
        return torch.randint(pair.target.vocab_size, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    ids = pair.target.encode([{"role": "user", "content": "Tell me how tides work, step by step. " * (length // 4)}])
    return ids[:length]


def eager_step(pair: Pair, context: Context, length: int, repeats: int) -> float:
    """A pass over one token with its argmax on the host; the context is left as it was."""
    target = pair.target
    token, position = torch.tensor([7], device=target.device), torch.tensor([length], device=target.device)

    @torch.inference_mode()
    def step() -> None:
        int(target.verify(context, token, position, None).logits.argmax())
        context.commit([])

    return median_ms(step, repeats, target.device)


@torch.inference_mode()
def round_times(stages: Stages, length: int, repeats: int) -> dict[str, float]:
    """Medians of each stage on the device and of the whole round on the host, always at this context."""
    spent: list[dict[str, float]] = []
    for _ in range(repeats + 3):
        stages.length.fill_(length)
        stages.fresh.fill_(length - len(stages.path) if length > len(stages.path) else 0)
        stages.begin(7, stages.shape.depths, 0)
        wait(stages.device)
        began = time.perf_counter()
        marks = stages.launch(length)
        stages.outcome()
        whole = time.perf_counter() - began
        spent.append(marks.seconds() | {"round": whole})
    return {name: 1000 * statistics.median(one[name] for one in spent[3:]) for name in spent[0]}


@torch.inference_mode()
def draft_of(pair: Pair) -> Draft:
    """A block behind a short text."""
    context = Context()
    prompt = prompt_of(pair, 64)
    features = pair.target.prefill(context, prompt, pair.drafter.config.target_layer_ids).features
    drafted = pair.drafter.draft(7, features, ContextCache())
    return Draft(drafted.hidden.clone(), drafted.base_logits.clone())


def builders_of(
    pair: Pair, draft: Draft, anchor: int, budget: int, candidates: int | None, repeats: int
) -> Iterator[Row]:
    """All builders for one budget. `same` compares nodes with the eager heap's, `gap` their scores if they differ."""
    head, device = pair.drafter.head, pair.target.device
    assert head is not None
    most = budget if candidates is None else min(candidates, budget)

    def scorer_of(given: Draft, token: int | Tensor) -> ConditionalScorer:
        return ConditionalScorer(head, given.hidden, given.base_logits, token, most, candidates)

    @torch.inference_mode()
    def eager_heap() -> DraftTree:
        return heap(scorer_of(draft, anchor), anchor, budget)

    reference = eager_heap()
    few = max(2, repeats // 10)
    common: Row = {"budget": budget, "candidates": candidates, "depth": mean_depth(reference)}
    yield common | {"builder": "heap", "ms": median_ms(eager_heap, few, device)}
    makers: dict[str, Callable[[], HeapGraph | FrontierGraph]] = {
        "heap-graph": lambda: HeapGraph(scorer_of, draft, budget),
        "frontier-graph": lambda: FrontierGraph.of_scorer(scorer_of, draft, budget),
    }
    if device.type == "cuda":
        makers["frontier-triton"] = lambda: FrontierGraph(fused_lanes(head, candidates), draft, budget)
    for name, make in makers.items():
        try:
            graph = make()
            row = common | {"builder": name} | difference(graph.build(draft, anchor), reference)
            yield row | timed(graph, draft, anchor, repeats)
        except Exception as error:  # one builder's failure must not cost the others
            yield common | {"builder": name, "error": one_line(error)}


def timed(graph: HeapGraph | FrontierGraph, draft: Draft, anchor: int, repeats: int) -> Row:
    """Until there is a tree; of a sweep also until its numbers are on the host."""
    device = draft.hidden.device
    if isinstance(graph, HeapGraph):
        return {"ms": median_ms(lambda: graph.build(draft, anchor), max(4, repeats // 5), device)}
    return {
        "ms": median_ms(lambda: graph.build(draft, anchor), repeats, device),
        "packed_ms": median_ms(lambda: graph.packed(draft, anchor), repeats, device),
    }


def difference(tree: DraftTree, reference: DraftTree) -> Row:
    """Whether the nodes are the same in the same order, and the largest difference of scores at one place."""
    same = all(getattr(tree, name).tolist() == getattr(reference, name).tolist() for name in ("tokens", "parents"))
    size = min(len(tree), len(reference)) + 1
    return {"same": same, "gap": float(abs(tree.log_probs[:size] - reference.log_probs[:size]).max())}


def mean_depth(tree: DraftTree) -> float:
    """Of the drafted nodes; 0 without any."""
    return float(tree.depths[1:].mean()) if len(tree) else 0.0


def one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


# --- The command -------------------------------------------------------------------------------------------------


def main() -> None:
    """All pieces that were asked for, model by model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True)
    add("--only", action="append", metavar="MODEL[:PIECE]", help=f"of {', '.join(MODELS)} and {', '.join(PIECES)}")
    add("--device", default="cuda")
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    add("--budgets", type=int, nargs="+", default=[16, 64, 256])
    add("--contexts", type=int, nargs="+", default=[256, 1024, 4096])
    add("--candidates", type=int, nargs="+", default=[64, 0], help="0: the whole vocabulary")
    add("--repeats", type=int, default=30)
    given = parser.parse_args()
    candidates = tuple(count or None for count in given.candidates)
    grid = Grid(tuple(given.budgets), tuple(given.contexts), candidates, given.repeats)
    results = json.loads(given.out.read_text()) if given.out.exists() else {}
    results |= {"machine": machine(given.device), "dtype": given.dtype, "unit": "ms, medians"}
    for model, pieces in chosen(given.only).items():
        pair = None
        for piece in pieces:
            rows: list[Row] = []
            results[f"{model}:{piece}"] = rows
            with reported(f"{model}:{piece}", rows):
                pair = pair or load_pair(model, given.device, getattr(torch, given.dtype))
                for row in PIECES[piece](pair, grid):
                    rows.append({"weights": pair.weights} | row)
                    print(f"{model}:{piece}", json.dumps(rounded(row)), flush=True)
                    write_json(given.out, results)
            write_json(given.out, results)
        del pair
        gc.collect()


def chosen(only: list[str] | None) -> dict[str, list[str]]:
    """Pieces by model, in the order they were asked for."""
    wanted: dict[str, list[str]] = {}
    for name in only or MODELS:
        model, _, piece = name.partition(":")
        if model not in ("smollm2", *SIZES) or (piece and piece not in PIECES):
            raise SystemExit(f"{name}: there are {', '.join(MODELS)}, each with {', '.join(PIECES)}")
        wanted.setdefault(model, []).extend([piece] if piece else PIECES)
    return wanted


@contextmanager
def reported(name: str, rows: list[Row]) -> Iterator[None]:
    """A failure is a row of its own and a line on the screen; what follows still runs."""
    began = time.perf_counter()
    try:
        yield
    except Exception as error:  # whatever it is, hours of other measurements must not be lost with it
        rows.append({"error": one_line(error)})
        print(f"{name} failed: {one_line(error)}", flush=True)
    print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)


def machine(device: str) -> Row:
    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    return {"gpu": gpu, "torch": torch.__version__, "transformers": transformers.__version__,
            "python": platform.python_version()}  # fmt: skip


def rounded(row: Row) -> Row:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}


if __name__ == "__main__":
    main()
