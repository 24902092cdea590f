"""A small real trace for tests: a byte-level target and a drafter that is right at about every other place."""

from functools import cache

from toy_models import byte_tokenizer, oracle_drafter, target_of, tiny_model

from dominotree_lite.decode import Settings
from dominotree_lite.drafter import Drafter
from dominotree_lite.prompts import PromptRow
from dominotree_lite.target import Target
from dominotree_lite.trace import Trace
from dominotree_lite.tracer import record

ROWS = (PromptRow("one", "toy", ("Hi there",)), PromptRow("two", "toy", ("Well?", "And?")))
SETTINGS = Settings(budget=10, candidates=20, max_new_tokens=24)


@cache
def toy_target() -> Target:
    return target_of(tiny_model("llama", 258, seed=1), tokenizer=byte_tokenizer())


def ids_of(row: PromptRow) -> list[int]:
    return toy_target().encode([{"role": "user", "content": row.turns[0]}])


@cache
def toy_drafter() -> Drafter:
    """It knows what the target says to the first prompt at temperature 0, and takes no other text."""
    return oracle_drafter(toy_target(), ids_of(ROWS[0]), 40, "domino", wrong=0.4, seed=2)


@cache
def toy_trace(settings: Settings = SETTINGS) -> Trace:
    return record(ROWS[:1], toy_target(), toy_drafter(), settings)
