"""Wording shared with prompts to be avoided: thirteen tokens in a row, or a whole shorter prompt."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_training import tiny_llama, tiny_tokenizer

from dominotree_lite.errors import InputError
from dominotree_lite.target import Target
from dominotree_lite.train.author import CorpusConfig, write_corpus
from dominotree_lite.train.overlap import Overlap
from dominotree_lite.train.questions import BOXED, PASS, SOLVE

LONG = "Count the grey herons at the lake."


def prompts_file(path: Path, *turns: list[str]) -> Path:
    lines = [json.dumps({"id": str(i), "suite": "s", "turns": texts}) for i, texts in enumerate(turns)]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def target() -> Target:
    """A token a byte: thirteen tokens are thirteen letters."""
    return tiny_llama(tokenizer=tiny_tokenizer())


@pytest.mark.parametrize(
    ("text", "met"),
    [
        (LONG, True),
        ("Please count the\n  GREY herons, and more", True),
        ("the grey her", True),  # with the space before a first word
        ("the grey he", False),
        ("a the grey herb", True),
        ("a the grey hen", False),
        ("Count the heron at a lake.", False),
        ("And what is pi? I ask you", True),  # the second turn is short: all of it counts
        ("And what is pie?", False),
        ("", False),
    ],
)
def test_thirteen_tokens_in_a_row_or_a_whole_short_turn(text: str, met: bool, target: Target, tmp_path: Path) -> None:
    overlap = Overlap(target, (prompts_file(tmp_path / "a.jsonl", [LONG, "What is pi?"]),))
    assert overlap.met_in(text) == met


def test_wording_that_a_domain_shares_is_nobodys(target: Target, tmp_path: Path) -> None:
    path = prompts_file(
        tmp_path / "a.jsonl",
        ["How many herons?" + BOXED],
        [f"{SOLVE}def heron(x)"],
        [f"Find herons. {PASS}\n\nassert y"],
    )
    overlap = Overlap(target, (path,))
    assert not any(overlap.met_in(text) for text in (f"Why?{BOXED}", f"{SOLVE}def crow(x)", f"Go. {PASS}\n\nassert z"))
    assert overlap.met_in(f"Say: how many herons?{BOXED}")
    assert overlap.met_in(f"{SOLVE}def heron(x)")


def test_several_files_count_and_none_means_nothing(target: Target, tmp_path: Path) -> None:
    first = prompts_file(tmp_path / "a.jsonl", [LONG])
    second = tmp_path / "b.jsonl"
    second.write_text(json.dumps({"id": "other", "suite": "s", "turns": ["Sing of the seven swans"]}))
    overlap = Overlap(target, (first, second))
    assert overlap.files == ["a.jsonl", "b.jsonl"]
    assert overlap.met_in(LONG) and overlap.met_in("oh, sing of the seven swans")
    assert not Overlap(target, ()).met_in(LONG)


def test_rows_that_overlap_are_dropped_and_counted(target: Target, tmp_path: Path) -> None:
    config = CorpusConfig(rows=80, row_length=90, user_length=40, template_share=0.0, opening_share=1.0, min_reply=1)
    free = write_corpus(target, tmp_path / "free", config)
    with np.load(free[0]) as file:
        begin = int(file["len"][0])
        prompt = file["flat"][begin : begin + int(file["ast"][1])].tolist()
        before = len(file["len"])
    turn = target.tokenizer.decode(prompt[7:27])  # type: ignore[union-attr]
    path = prompts_file(tmp_path / "a.jsonl", [str(turn)])
    kept = write_corpus(target, tmp_path / "kept", config, (path,))
    facts = json.loads((tmp_path / "kept" / "statistics.json").read_text())
    with np.load(kept[0]) as file:
        assert 1 <= facts["dropped"]["overlap"] == before - len(file["len"]) < before
    assert facts["settings"]["avoid"] == ["a.jsonl"]
    assert "a.jsonl" in (tmp_path / "kept" / "card.md").read_text()
    with pytest.raises(InputError, match="begun with other avoid"):
        write_corpus(target, tmp_path / "free", config, (path,))


def test_a_file_that_cannot_be_read_is_refused_before_anything_is_written(target: Target, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.jsonl"):
        write_corpus(target, tmp_path / "out", CorpusConfig(), (tmp_path / "none.jsonl",))
    assert not (tmp_path / "out").exists()
