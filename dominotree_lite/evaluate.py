"""Methods side by side on the same prompts: tau, speed, and whether the text is plain decoding's own.

Everything runs in one process with one target, prompt by prompt and within each prompt method by method, so
that a machine that slows down slows all alike. This file decodes by `decode`, measures, and adds up. It does
not load models, print, or know the command line.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import transformers

from .decode import Conversation, Result, StageSeconds, decode
from .drafter import Drafter
from .equip import equipped
from .errors import InputError
from .methods import METHODS, Method, Settings
from .packed import is_packed
from .prompts import ALL, PromptRow
from .target import Context, Target

BASELINE = "ar"
WARM_UP_TOKENS = 8

Drafters = Mapping[str, Drafter]  # kind ("dflash", "domino") -> drafter
Progress = Callable[[PromptRow], None]  # called when every method has done a prompt


@dataclass(frozen=True)
class Divergence:
    """Where a greedy text first leaves the baseline's.

    `margin` is the target's logit of the baseline's token minus that of the method's, by plain decoding over
    what both have in common: near 0 it is rounding, anything else a fault. None where one text merely ends.
    """

    id: str
    method: str
    position: int  # index among the prompt's new tokens, over all its turns
    margin: float | None


@dataclass(frozen=True)
class Record:
    """One method on one prompt. `tokens` are those that rounds emitted: without the one prefill yields."""

    id: str
    suite: str
    method: str
    tokens: int
    rounds: int
    seconds: float  # decode wall time without prefill
    stages: dict[str, float]  # the rounds' draft, build, verify and commit, in seconds
    token_sha256: str  # of all new token ids, written in decimal with commas between
    divergence: Divergence | None


@dataclass(frozen=True)
class Row:
    """One method on one suite (or on all): sums over prompts, and their ratios."""

    method: str
    suite: str
    prompts: int
    tokens: int
    rounds: int
    tau: float  # tokens a round, pooled
    seconds: float
    tokens_per_second: float
    speedup: float | None  # over the baseline on the same suite; None where that was not run
    identical_to_ar: int | None  # prompts; None where there is no greedy baseline


@dataclass(frozen=True)
class Comparison:
    """What `compare` found: a row a method and suite, and what they were added up from, prompt by prompt."""

    settings: dict[str, Any]
    rows: list[Row]
    records: list[Record]

    @property
    def divergences(self) -> list[Divergence]:
        """Every prompt and method whose text is not the baseline's; empty if all agree."""
        return [record.divergence for record in self.records if record.divergence]

    def stages(self, method: str, suite: str = ALL) -> dict[str, float]:
        """Mean milliseconds a round of each stage; zeros if there was no round."""
        records = [r for r in self.records if r.method == method and suite in (ALL, r.suite)]
        rounds = sum(record.rounds for record in records) or 1
        return {stage: 1000 * sum(r.stages[stage] for r in records) / rounds for stage in asdict(StageSeconds())}

    def to_json(self) -> dict[str, Any]:
        """Settings, rows and divergences, as `dominotree compare --json` writes them."""
        return {
            "settings": self.settings,
            "rows": [asdict(row) for row in self.rows],
            "divergences": [asdict(divergence) for divergence in self.divergences],
        }

    def records_json(self) -> list[dict[str, Any]]:
        """A flat object a prompt and method, with `position` and `margin` of its divergence, or None."""
        flat = []
        for record in self.records:
            fields = asdict(record)
            divergence = fields.pop("divergence") or {"position": None, "margin": None}
            flat.append(fields | {"position": divergence["position"], "margin": divergence["margin"]})
        return flat


def compare(
    prompts: Sequence[PromptRow],
    target: Target,
    drafters: Drafters,
    methods: Sequence[str],
    settings: Settings,
    progress: Progress | None = None,
) -> Comparison:
    """Decode every prompt with every method; `settings.method` is not read.

    A second turn follows the method's own first answer. Raises InputError before anything runs for an unknown
    or repeated method, for one whose drafter, costs or map is not there, and for user turns beyond the target's
    positions.
    """
    check_methods(methods, target, drafters, settings)
    check_prompts(prompts, target)
    each = {method: replace(settings, method=method) for method in methods}
    _warm_up(prompts[0], target, drafters, each.values())
    records: list[Record] = []
    for prompt in prompts:
        results = {method: decode_prompt(prompt, target, drafters, own) for method, own in each.items()}
        baseline = results.get(BASELINE) if settings.sampling.greedy else None
        for method, result in results.items():
            divergence = first_divergence(prompt.id, method, result, baseline, target) if baseline else None
            records.append(_record(prompt, method, result, divergence))
        if progress:
            progress(prompt)
    described = describe(target, drafters, methods, settings)
    return Comparison(described, _rows(records, methods, settings.sampling.greedy), records)


def _warm_up(prompt: PromptRow, target: Target, drafters: Drafters, each: Iterable[Settings]) -> None:
    """A few tokens of every method, so that none pays for what the first use of a model costs."""
    for settings in each:
        few = replace(settings, max_new_tokens=min(WARM_UP_TOKENS, settings.max_new_tokens))
        decode_prompt(replace(prompt, turns=prompt.turns[:1]), target, drafters, few)


def usable_methods(drafters: Drafters) -> list[str]:
    """Every method that these drafters serve with nothing measured before, in the order of METHODS."""
    return [name for name, method in METHODS.items() if method is None or _serves(drafters, method)]


def _serves(drafters: Drafters, method: Method) -> bool:
    return method.drafter in drafters and method.rule is None


def check_methods(methods: Sequence[str], target: Target, drafters: Drafters, settings: Settings) -> None:
    """Raise InputError for no method, one unknown or repeated, and one whose drafter, costs or map is not there."""
    for method in methods:
        if method not in METHODS:
            raise InputError(f"no method {method!r}; there are {', '.join(METHODS)}")
        equipped(replace(settings, method=method), target, drafter_of(method, drafters))
    if len(set(methods)) != len(methods) or not methods:
        raise InputError(f"methods {','.join(methods)}: name one or more, each once")


def check_prompts(prompts: Sequence[PromptRow], target: Target) -> None:
    """Raise InputError for no prompts, and for user turns that exceed the target's positions by themselves."""
    if not prompts:
        raise InputError("there are no prompts to compare on")
    for prompt in prompts:
        length = len(target.encode([{"role": "user", "content": "\n".join(prompt.turns)}]))  # answers come on top
        if not 0 < length <= target.max_positions:
            raise InputError(
                f"prompt {prompt.id}: {length} tokens, {target.name} takes 1 to {target.max_positions}: change it"
            )


def drafter_of(method: str, drafters: Drafters) -> Drafter | None:
    """The one among these that a method needs; None if it needs none, and if it is not there."""
    wanted = METHODS[method]
    return drafters.get(wanted.drafter) if wanted else None


def decode_prompt(prompt: PromptRow, target: Target, drafters: Drafters, settings: Settings) -> Result:
    """All turns of a prompt with draws of its own. Raises InputError, naming the prompt, if they don't fit."""
    own = replace(settings, seed=seed_of(prompt, settings.seed))
    with naming(prompt, settings.method):
        return decode(prompt.turns, target, drafter_of(settings.method, drafters), own)


@contextmanager
def naming(prompt: PromptRow, method: str) -> Iterator[None]:
    """An InputError from within says which prompt and method it came from."""
    try:
        yield
    except InputError as error:
        raise InputError(f"prompt {prompt.id}, method {method}: {error}") from error


def seed_of(prompt: PromptRow, seed: int) -> int:
    """The seed of one prompt's draws: prompts that share draws would not be independent."""
    digest = hashlib.sha256(f"{seed} {prompt.id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


# --- Against plain decoding ----------------------------------------------------------------------------------


def first_divergence(
    prompt_id: str, method: str, result: Result, baseline: Result, target: Target
) -> Divergence | None:
    """Where `result` leaves `baseline`, and how sure the target was there; None if their tokens are equal."""
    before = 0
    for ours, theirs in zip(_turns(result), _turns(baseline), strict=True):
        if ours.token_ids != theirs.token_ids:
            at = _common(ours.token_ids, theirs.token_ids)
            return Divergence(prompt_id, method, before + at, _margin(ours, theirs, at, target))
        before += len(ours.token_ids)
    return None


def _turns(result: Result) -> Sequence[Result]:
    return result.turns if isinstance(result, Conversation) else [result]


def _common(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))


def _margin(ours: Result, theirs: Result, at: int, target: Target) -> float | None:
    if at == min(len(ours.token_ids), len(theirs.token_ids)):
        return None
    logits = target.prefill(Context(), theirs.prompt_ids + theirs.token_ids[:at]).logits[0]  # [V]
    return float(logits[theirs.token_ids[at]] - logits[ours.token_ids[at]])


# --- Adding up -----------------------------------------------------------------------------------------------


def _record(prompt: PromptRow, method: str, result: Result, divergence: Divergence | None) -> Record:
    stages = [asdict(r.seconds) for r in result.rounds]
    return Record(
        id=prompt.id,
        suite=prompt.suite,
        method=method,
        tokens=sum(len(r.tokens) for r in result.rounds),
        rounds=len(result.rounds),
        seconds=result.seconds,
        stages={stage: sum(s[stage] for s in stages) for stage in asdict(StageSeconds())},
        token_sha256=token_sha256(result.token_ids),
        divergence=divergence,
    )


def token_sha256(ids: Sequence[int]) -> str:
    """SHA-256 of token ids, written in decimal with commas between."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


def _rows(records: Sequence[Record], methods: Sequence[str], greedy: bool) -> list[Row]:
    """Suite by suite in order of appearance, then all of them, each with a row a method."""
    rows = []
    for suite in [*dict.fromkeys(record.suite for record in records), ALL]:
        chosen = {m: [r for r in records if r.method == m and suite in (ALL, r.suite)] for m in methods}
        base_rate = _rate(chosen[BASELINE]) if BASELINE in chosen else 0.0
        counted = greedy and BASELINE in chosen
        rows += [_row(method, suite, own, base_rate, counted) for method, own in chosen.items()]
    return rows


def _rate(records: Sequence[Record]) -> float:
    """Tokens a second; 0 if no round was needed."""
    tokens, seconds = sum(r.tokens for r in records), sum(r.seconds for r in records)
    return tokens / seconds if tokens else 0.0


def _row(method: str, suite: str, records: Sequence[Record], base_rate: float, counted: bool) -> Row:
    tokens, rounds = sum(r.tokens for r in records), sum(r.rounds for r in records)
    rate = _rate(records)
    return Row(
        method=method,
        suite=suite,
        prompts=len(records),
        tokens=tokens,
        rounds=rounds,
        tau=tokens / rounds if rounds else 0.0,
        seconds=sum(r.seconds for r in records),
        tokens_per_second=rate,
        speedup=rate / base_rate if base_rate else None,
        identical_to_ar=sum(r.divergence is None for r in records) if counted else None,
    )


# --- What it was measured with --------------------------------------------------------------


def describe(target: Target, drafters: Drafters, methods: Sequence[str], settings: Settings) -> dict[str, Any]:
    """Models, software, machine and settings of a run, ready for JSON. `candidates` "full": the vocabulary."""
    shared = ("budget", "max_budget", "child_cap", "slots", "max_new_tokens", "seed", "engine")
    return {
        "target": target.name,
        "drafters": {kind: drafter.name for kind, drafter in drafters.items()},
        "methods": list(methods),
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device),
        "linear": "packed" if is_packed(target.model) else "plain",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": machine(target.device),
        **{name: getattr(settings, name) for name in shared},
        "candidates": "full" if settings.candidates is None else settings.candidates,
        **asdict(settings.sampling),
    }


def machine(device: torch.device) -> dict[str, Any]:
    """Processor, number of CPUs, and the GPU (None on a CPU)."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {"processor": platform.processor() or platform.machine(), "cpus": os.cpu_count(), "gpu": gpu}
