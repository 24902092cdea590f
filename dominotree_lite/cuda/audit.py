"""Are the captured builders' trees the heap's? Random rounds, every difference listed with its gap in score.

    python -m dominotree_lite.cuda.audit --out audit.json --device cuda --sizes qwen3-4b

`heap-graph` must equal the eager heap to the last bit. `frontier-graph`, and `frontier-triton`, which runs on Triton
kernels, compute lanes in batches, so their trees may differ where two scores are closer than rounding. Weights and
drafts are random; nothing is timed here.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3Config

from ..build import heap
from ..drafter import DominoConfig, DominoHead, Draft, DrafterConfig, DraftModel
from ..files import write_json
from ..scoring import ConditionalScorer
from ..tree import DraftTree
from .builders import FrontierGraph, HeapGraph
from .lanes import fused_lanes

SIZES = {"tiny": (32, 16, 8, 500, 6), "qwen3-4b": (2560, 1024, 256, 151_936, 16)}  # hidden, GRU, rank, vocabulary, L


def random_head(sizes: str, device: str, dtype: torch.dtype) -> DominoHead:
    """A head of these sizes with random weights, large enough to reorder candidates."""
    hidden, gru, rank, vocabulary, depths = SIZES[sizes]
    backbone = Qwen3Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    model = DraftModel(DrafterConfig(backbone, 0, (0,), depths, True, DominoConfig(rank, gru)))
    model = model.to(device, dtype).requires_grad_(False)
    model.get_parameter("embed_proj.2.weight").mul_(20)
    return DominoHead(model, nn.Embedding(vocabulary, hidden, device=device, dtype=dtype).requires_grad_(False))


def random_draft(sizes: str, like: Tensor, seed: int) -> Draft:
    """Hidden rows and base logits of one round, drawn on the device of `like` in its dtype."""
    hidden, _gru, _rank, vocabulary, depths = SIZES[sizes]
    generator = torch.Generator(like.device).manual_seed(seed)
    options: dict[str, Any] = {"generator": generator, "device": like.device, "dtype": like.dtype}
    return Draft(torch.randn(depths, hidden, **options), 3 * torch.randn(depths, vocabulary, **options))


def gap(tree: DraftTree, other: DraftTree) -> float | None:
    """The largest difference between scores of the same place; None if the trees have the same nodes in order."""
    if tree.tokens.tolist() == other.tokens.tolist() and tree.parents.tolist() == other.parents.tolist():
        return None
    size = min(len(tree), len(other)) + 1
    return float(abs(tree.log_probs[:size] - other.log_probs[:size]).max())


@torch.inference_mode()
def audit(
    sizes: str, device: str, dtype: torch.dtype, budget: int, candidates: int | None, rounds: dict[str, int]
) -> dict[str, Any]:
    """Builders against the eager heap on so many rounds each (0: it is left out); rounds that differ are listed."""
    head = random_head(sizes, device, dtype)

    def scorer_of(draft: Draft, anchor: int | Tensor) -> ConditionalScorer:
        most = budget if candidates is None else min(candidates, budget)
        return ConditionalScorer(head, draft.hidden, draft.base_logits, anchor, most, candidates)

    first = random_draft(sizes, head.output_weight, 0)
    by_heap = HeapGraph(scorer_of, first, budget)
    sweeps = {"frontier-graph": FrontierGraph.of_scorer(scorer_of, first, budget)}
    if rounds.get("frontier-triton"):
        sweeps["frontier-triton"] = FrontierGraph(fused_lanes(head, candidates), first, budget)
    unequal: list[int] = []
    differences: dict[str, list[dict[str, Any]]] = {name: [] for name in sweeps}
    for seed in range(max(rounds.values())):
        draft, anchor = random_draft(sizes, head.output_weight, seed), seed % SIZES[sizes][3]
        reference = heap(scorer_of(draft, anchor), anchor, budget)
        if seed < rounds["heap-graph"] and by_heap.build(draft, anchor).to_json() != reference.to_json():
            unequal.append(seed)
        for name, graph in sweeps.items():
            found = gap(graph.build(draft, anchor), reference) if seed < rounds[name] else None
            if found is not None:
                differences[name].append({"round": seed, "gap": found})
    return {"heap-graph": {"unequal": unequal}} | {name: {"differences": list_} for name, list_ in differences.items()}


def main() -> None:
    """One JSON file: the settings, and the rounds that differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True)
    add("--device", default="cuda")
    add("--sizes", choices=sorted(SIZES), default="qwen3-4b")
    add("--dtype", choices=("float32", "bfloat16", "float64"), default="bfloat16")
    add("--budget", type=int, default=64)
    add("--candidates", type=int, default=64)
    add("--heap-rounds", type=int, default=500)
    add("--frontier-rounds", type=int, default=1000)
    add("--triton-rounds", type=int, default=0)
    given = parser.parse_args()
    rounds = {"heap-graph": given.heap_rounds, "frontier-graph": given.frontier_rounds}
    rounds["frontier-triton"] = given.triton_rounds
    result = audit(
        given.sizes, given.device, getattr(torch, given.dtype), given.budget, given.candidates or None, rounds
    )
    settings = {name: str(value) for name, value in vars(given).items() if name != "out"}
    write_json(given.out, {"settings": settings, **result})
    print("heap-graph:", len(result.pop("heap-graph")["unequal"]), "unequal")
    for name, found in result.items():
        gaps = [difference["gap"] for difference in found["differences"]]
        print(f"{name}: {len(gaps)} differ, by at most {max(gaps, default=0)}")


if __name__ == "__main__":
    main()
