"""Records of an evaluation that never took place: rounds are drawn, then folded as `bench` folds them."""

import hashlib
from collections.abc import Sequence

import numpy as np

from dominotree_lite.records import BenchRecord, Machine, Parting, RecordSet, Run, Stages

RUN = Run("r1", "2026-01-31T12:00:00+00:00", "0.1.0", "3.11.2", "2.13.0", "5.24.0", 1, Machine("x86_64", 2, None))
DEPTH = {"ar": 0, "domino": 4, "dominotree": 6, "marginal": 6}
CHANCE = {"ar": 0.0, "domino": 0.6, "dominotree": 0.7, "marginal": 0.5}


def made(
    method: str, suite: str, name: str, budget: int | None = None, temperature: float = 0.0, seed: int = 0
) -> BenchRecord:
    """One record, always the same for the same arguments; larger trees are accepted more and take longer."""
    cell = hashlib.sha256(f"{method} {suite} {name} {budget} {temperature} {seed}".encode())
    rng = np.random.default_rng(list(cell.digest()[:4]))
    count, deepest = int(rng.integers(8, 20)), DEPTH[method]
    chance = CHANCE[method] + (0.02 * np.log2(budget) if budget else 0.0)
    reached = [deepest] * count
    kept = [int(np.argmin([*(rng.random(deepest) < chance), False])) for _ in range(count)]
    verify = count * (0.02 + 0.001 * (budget or deepest)) * rng.uniform(0.9, 1.1)
    stages = Stages(0.004 * count * (deepest > 0), 0.001 * (budget or 0), verify, 0.001 * count)
    return BenchRecord(
        id=name,
        suite=suite,
        method=method,
        target="smollm2",
        drafter=None if method == "ar" else "smollm2-domino",
        temperature=temperature,
        budget=budget,
        candidates=512 if method == "dominotree" else None,
        child_cap=None,
        seed=seed,
        max_new_tokens=64,
        turns=1,
        device="cpu",
        dtype="float32",
        linear="packed",
        engine="eager",
        cell=cell.hexdigest(),
        run="r1",
        tokens=count + sum(kept),
        rounds=count,
        seconds=stages.draft + stages.build + stages.verify + stages.commit,
        prefill_seconds=0.05,
        stages=stages,
        accepted=np.bincount(kept).tolist(),
        reached=np.bincount(reached).tolist(),
        nodes=count * (budget or deepest),
        token_sha256=hashlib.sha256(name.encode()).hexdigest(),
        divergence=None,
    )


def evaluation(prompts: int = 6, temperatures: Sequence[float] = (0.0, 1.0)) -> RecordSet:
    """Two suites; `dominotree` and `marginal` with three budgets; one text of the tree leaves that of `ar`."""
    cells: list[tuple[str, int | None]] = [("ar", None), ("domino", None)]
    cells += [(method, budget) for method in ("marginal", "dominotree") for budget in (4, 16, 64)]
    records = [
        made(method, suite, f"{suite}-{n}", budget, temperature)
        for temperature in temperatures
        for suite in ("code", "talk")
        for n in range(prompts)
        for method, budget in cells
    ]
    place = next(i for i, one in enumerate(records) if (one.method, one.budget) == ("dominotree", 16))
    records[place] = parted(records[place])
    return RecordSet({"r1": RUN}, records)


def parted(record: BenchRecord) -> BenchRecord:
    return BenchRecord(**{**vars(record), "divergence": Parting(17, -0.0001)})
