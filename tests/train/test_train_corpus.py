"""Reading training text, holding rows out, and the stream of batches."""

import io
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_training import random_rows, text_of, write_npz

from dominotree_lite.errors import InputError
from dominotree_lite.train.corpus import HOLD_OUT, Batch, Batches, Corpus, load_corpus


def rows_of(corpus: Corpus) -> list[list[int]]:
    return [corpus.flat[s : s + n].tolist() for s, n in zip(corpus.start, corpus.length, strict=True)]


# --- files ----------------------------------------------------------------------------------------------


def test_several_files_are_read_as_one(tmp_path: Path) -> None:
    first, second = random_rows(5, 100, seed=0), random_rows(4, 70_000, seed=1)
    paths = [
        write_npz(tmp_path / "a.npz", first, reply=3, temp=np.array([0, 0.8, 0, 0.8, 0], np.float16)),
        write_npz(tmp_path / "b.npz", second, reply=4),
    ]
    corpus = load_corpus(paths, 70_000)
    assert rows_of(corpus) == first + second
    assert corpus.reply.tolist() == [3] * 5 + [4] * 4
    assert corpus.temperature.tolist() == pytest.approx([0, 0.8, 0, 0.8, 0, 0, 0, 0, 0], abs=1e-3)


def test_rows_without_two_tokens_of_reply_are_left_out(tmp_path: Path) -> None:
    rows = [[1, 2, 3, 4], [1, 2, 3], [1, 2], [5, 6, 7, 8, 9]]
    path = write_npz(tmp_path / "a.npz", rows, reply=2)
    assert rows_of(load_corpus([path], 10)) == [rows[0], rows[3]]


def npy_bytes() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ones(9, int))
    return buffer.getvalue()


ROWS = [[1, 2, 3, 4], [5, 6, 7, 8, 9]]
WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "not a corpus file"),
    "no npz": (lambda path: path.write_text("hello"), "not a corpus file"),
    "one array": (lambda path: path.write_bytes(npy_bytes()), "not a corpus file"),
    "empty": (lambda path: path.touch(), "not a corpus file"),
    "folder": (lambda path: path.mkdir(), "not a corpus file"),
    "cut short": (
        lambda path: path.write_bytes(write_npz(path, ROWS, 1).read_bytes()[:-40]),
        "not a corpus file",
    ),
    "key missing": (lambda path: write_npz(path, ROWS, 1, ast=None), "not a corpus file"),
    "pickled": (lambda path: write_npz(path, ROWS, 1, flat=np.array([{}], object)), "not a corpus file"),
    "fractions": (lambda path: write_npz(path, ROWS, 1, flat=np.ones(9)), "whole numbers"),
    "words": (lambda path: write_npz(path, ROWS, 1, temp=np.array(["hot", "cold"])), "temp numbers"),
    "table": (lambda path: write_npz(path, ROWS, 1, flat=np.ones((3, 3), int)), "plain lists"),
    "single number": (lambda path: write_npz(path, ROWS, 1, temp=np.float32(0)), "plain lists"),
    "too few tokens": (lambda path: write_npz(path, ROWS, 1, flat=np.ones(8, int)), "do not add up"),
    "too few replies": (lambda path: write_npz(path, ROWS, 1, ast=np.ones(1, int)), "do not add up"),
    "reply before": (lambda path: write_npz(path, ROWS, 1, ast=np.array([-1, 1])), "outside its row"),
    "reply behind": (lambda path: write_npz(path, ROWS, 1, ast=np.array([5, 1])), "outside its row"),
    "large id": (lambda path: write_npz(path, [[1, 2, 3, 10]], 1), "token 10 is outside a vocabulary of 10"),
    "negative id": (
        lambda path: write_npz(path, ROWS, 1, flat=-np.ones(9, int)),
        "token -1 is outside a vocabulary of 10",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_files_are_refused_by_name(what: str, tmp_path: Path) -> None:
    make, complaint = WRONG[what]
    good, bad = write_npz(tmp_path / "good.npz", ROWS, reply=1), tmp_path / "bad.npz"
    make(bad)
    with pytest.raises(InputError, match=complaint) as caught:
        load_corpus([good, bad], 10)
    assert str(bad) in str(caught.value) and "\n" not in str(caught.value)


def test_a_flipped_byte_is_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", random_rows(50, 100, seed=0), reply=1)
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("flat.npy").header_offset + 300
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="not a corpus file"):
        load_corpus([path], 100)


def test_no_files_are_refused() -> None:
    with pytest.raises(InputError, match="no corpus files"):
        load_corpus([], 10)


# --- rows held out --------------------------------------------------------------------------------------


def held_texts(rows: list[list[int]]) -> set[tuple[int, ...]]:
    corpus = text_of(rows)
    return {tuple(row) for row, held in zip(rows_of(corpus), corpus.held_out(), strict=True) if held}


def test_the_same_texts_are_held_out_in_any_order_and_company() -> None:
    rows = random_rows(2000, 50, seed=0)
    shuffled = [rows[i] for i in np.random.default_rng(1).permutation(len(rows))]
    held = held_texts(rows)
    assert held_texts(shuffled) == held
    assert held_texts(rows[:700]) == held & {tuple(row) for row in rows[:700]}
    assert held_texts(rows + random_rows(300, 50, seed=2)) >= held
    assert 0.5 < len(held) / (len(rows) / HOLD_OUT) < 1.7


def test_a_text_met_twice_is_on_one_side() -> None:
    rows = random_rows(300, 50, seed=0)
    corpus = text_of(rows + rows)
    held = corpus.held_out()
    assert held[:300].tolist() == held[300:].tolist() and held.any()
    train, apart = corpus.select(np.flatnonzero(~held)), corpus.select(np.flatnonzero(held))
    assert not {tuple(row) for row in rows_of(train)} & {tuple(row) for row in rows_of(apart)}


def test_the_width_of_the_ids_on_disk_changes_nothing() -> None:
    wide = text_of(random_rows(500, 50, seed=0))
    narrow = Corpus(wide.flat.astype(np.uint16), wide.start, wide.length, wide.reply, wide.temperature)
    assert wide.held_out().tolist() == narrow.held_out().tolist()


# --- batches --------------------------------------------------------------------------------------------


def batches(rows: list[list[int]], reply: int = 2, seed: int = 0, **sizes: int) -> Batches:
    return Batches(text_of(rows, reply), sizes.get("rows", 4), sizes.get("anchors", 6), seed, "cpu")


def taken(batch: Batch) -> list[tuple[int, ...]]:
    return [tuple(ids[:n]) for ids, n in zip(batch.ids.tolist(), batch.lengths.tolist(), strict=True)]


def same(one: Batch, other: Batch) -> bool:
    pairs = ((one.ids, other.ids), (one.lengths, other.lengths), (one.anchors, other.anchors))
    return all(torch.equal(a, b) for a, b in pairs)


def test_batches_hold_the_rows_and_nothing_else() -> None:
    rows = random_rows(30, 50, seed=0)
    stream = batches(rows)
    for step in range(stream.per_epoch):
        batch = stream(step)
        assert set(taken(batch)) <= {tuple(row) for row in rows}
        padding = torch.arange(batch.ids.shape[1]) >= batch.lengths[:, None]
        assert (batch.ids[padding] == 0).all()


def test_an_epoch_meets_every_row_once_and_the_next_in_another_order() -> None:
    rows = [[i] * 3 + row for i, row in enumerate(random_rows(32, 50, seed=0))]
    stream = batches(rows)
    first, second = ([taken(stream(step)) for step in range(e * 8, e * 8 + 8)] for e in (0, 1))
    for epoch in (first, second):
        assert Counter(row for batch in epoch for row in batch) == Counter(map(tuple, rows))
    assert first != second


def test_anchors_lie_in_the_reply_with_a_token_of_it_behind_them() -> None:
    rows = [row[: 4 + i % 9] for i, row in enumerate(random_rows(40, 50, seed=0))]
    stream = batches(rows, reply=2, anchors=50)
    seen = set()
    for step in range(50):
        batch = stream(step)
        assert (batch.anchors >= 2).all() and (batch.anchors < batch.lengths[:, None] - 1).all()
        seen |= {(n, a) for n, own in zip(batch.lengths.tolist(), batch.anchors.tolist(), strict=True) for a in own}
    assert seen == {(n, a) for n in {len(row) for row in rows} for a in range(2, n - 1)}


def test_a_batch_depends_on_step_and_seed_alone() -> None:
    rows = random_rows(30, 50, seed=0)
    stream, other = batches(rows), batches(rows)
    backwards = {step: other(step) for step in (40, 3, 17, 0)}
    assert all(same(stream(step), batch) for step, batch in sorted(backwards.items()))
    assert not same(stream(0), batches(rows, seed=1)(0))


def test_anchors_are_drawn_anew_in_every_epoch() -> None:
    stream = batches([list(range(20))] * 4)
    assert stream.per_epoch == 1
    assert len({tuple(stream(step).anchors.flatten().tolist()) for step in range(5)}) == 5


def test_held_out_batches_are_the_same_every_time() -> None:
    rows = random_rows(30, 50, seed=0)
    first, again = list(batches(rows).in_order(5)), list(batches(rows).in_order(5))
    assert len(first) == 5 and all(same(a, b) for a, b in zip(first, again, strict=True))
    assert [row for batch in first for row in taken(batch)] == [tuple(row) for row in rows[:20]]
    assert len(list(batches(rows).in_order(100))) == 7


@pytest.mark.parametrize("count", [0, 3])
def test_too_few_rows_are_refused(count: int) -> None:
    with pytest.raises(InputError, match=f"the corpus has {count} rows to train on, a batch needs 4"):
        batches(random_rows(count, 50, seed=0))
