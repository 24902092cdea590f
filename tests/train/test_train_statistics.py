"""Statistics of a corpus against counting by hand, and what its card says."""

import json
import statistics as by_hand
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_training import END, random_rows, tiny_llama, write_npz

from dominotree_lite.errors import InputError
from dominotree_lite.train.statistics import add_seconds, summary, write_statistics

NAMES = ("sums", "songs", "nothing")
REPLY = 3


def rows() -> list[list[int]]:
    made = random_rows(40, 9, seed=0)
    made[7] = [5, 5, 5, *made[3][REPLY:]]  # a reply that was there before
    made[8] = [*made[2][:REPLY], 4, 4, END]  # a prompt that was there before
    return [row[:-1] + [END] if i % 3 == 0 else row[:-1] + [8] for i, row in enumerate(made)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards of 25 and 15 rows."""
    made = rows()
    for number, part in enumerate((made[:25], made[25:])):
        extra = {
            "kind": np.array([i % 2 for i in range(len(part))], np.uint8),
            "temp": np.array([0.0 if i % 4 else 0.8 for i in range(len(part))], np.float32),
            "dropped": np.array([1, 2, number]),
        }
        write_npz(tmp_path / f"corpus-0000{number}.npz", part, REPLY, **extra)
        add_seconds(tmp_path, f"corpus-0000{number}.npz", 2.0 + number)
    return tmp_path


def facts_of(folder: Path) -> dict[str, Any]:
    paths = sorted(folder.glob("*.npz"))
    write_statistics(folder, paths, tiny_llama(), {"rows": 46, "avoid": []}, NAMES)
    facts: dict[str, Any] = json.loads((folder / "statistics.json").read_text())
    return facts


def test_counts_are_those_by_hand(folder: Path) -> None:
    facts, made = facts_of(folder), rows()
    tokens = sum(map(len, made))
    assert facts["all"] == {"rows": 40, "tokens": tokens, "reply_tokens": tokens - 3 * 40}
    kinds = [i % 2 for i in range(25)] + [i % 2 for i in range(15)]
    for number, name in enumerate(NAMES):
        lengths = [len(row) for row, kind in zip(made, kinds, strict=True) if kind == number]
        part = {"rows": len(lengths), "tokens": sum(lengths), "reply_tokens": sum(lengths) - 3 * len(lengths)}
        assert facts["by_kind"][name] == part
    assert {name: part["rows"] for name, part in facts["by_temperature"].items()} == {"0": 29, "0.8": 11}
    assert facts["dropped"] == {"empty turn": 2, "short reply": 4, "overlap": 1}
    assert [file["rows"] for file in facts["files"]] == [25, 15]


def test_lengths_are_those_by_hand(folder: Path) -> None:
    facts, replies = facts_of(folder), [len(row) - REPLY for row in rows()]
    first, median, third = by_hand.quantiles(replies, n=4, method="inclusive")
    assert facts["reply_length"] == {
        "mean": pytest.approx(by_hand.mean(replies)),
        "first_quartile": pytest.approx(first),
        "median": pytest.approx(median),
        "third_quartile": pytest.approx(third),
        "longest": max(replies),
    }
    assert set(facts["prompt_length"].values()) == {3}


def test_shares_are_those_by_hand(folder: Path) -> None:
    facts, made = facts_of(folder), rows()
    ended = sum(row[-1] == END for row in made)
    assert facts["ended"] == pytest.approx(ended / 40) and facts["cut"] == pytest.approx(1 - ended / 40)
    assert facts["distinct_prompts"] == len({tuple(row[:REPLY]) for row in made}) < 40
    replies = [tuple(row[REPLY:]) for row in made]
    assert facts["repeated_replies"] == pytest.approx(1 - len(set(replies)) / 40)
    runs = [reply[i : i + 3] for reply in replies for i in range(len(reply) - 2)]
    assert facts["distinct_3"] == pytest.approx(len(set(runs)) / len(runs))


def test_the_speed_counts_the_seconds_of_all_shards(folder: Path) -> None:
    facts = facts_of(folder)
    assert facts["seconds"] == 5 and facts["tokens_per_second"] == pytest.approx(facts["all"]["tokens"] / 5)
    assert summary(folder).startswith(f"40 rows, {facts['all']['tokens']} tokens")


def test_the_card_has_the_numbers(folder: Path) -> None:
    facts = facts_of(folder)
    card = (folder / "card.md").read_text()
    assert f"40 rows, {facts['all']['tokens']} tokens" in card and "tiny-llama" in card
    assert "7 rows were dropped (empty turn 2, short reply 4, overlap 1)" in card
    for name in NAMES:
        assert f"| {name} | {facts['by_kind'][name]['rows']} |" in card
    assert all(file["sha256"] in card for file in facts["files"])


def test_an_empty_corpus_has_statistics_too(tmp_path: Path) -> None:
    extra = {"flat": np.array([], np.uint16), "len": np.array([], np.int32), "ast": np.array([], np.int32)}
    none = {"temp": np.array([], np.float32), "kind": np.array([], np.uint8), "dropped": np.array([0, 9, 0])}
    write_npz(tmp_path / "corpus-00000.npz", [[1]], 0, **extra, **none)
    facts = facts_of(tmp_path)
    assert facts["all"]["rows"] == 0 and facts["dropped"]["short reply"] == 9 and facts["seconds"] == 0


def test_a_damaged_shard_is_refused_by_name(folder: Path) -> None:
    path = folder / "corpus-00001.npz"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"corpus-00001\.npz: not a corpus file"):
        facts_of(folder)


def test_unreadable_seconds_are_refused(folder: Path) -> None:
    (folder / "seconds.json").write_text("[")
    with pytest.raises(InputError, match=r"seconds\.json: can't be read"):
        add_seconds(folder, "corpus-00002.npz", 1.0)
