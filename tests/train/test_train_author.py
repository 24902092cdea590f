"""The text a target writes: rows taken apart again, replies against plain greedy decoding, shards that resume."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_training import BOS, CHAT, END, TURN, tiny_llama, tiny_tokenizer
from transformers import GenerationConfig

from dominotree_lite import files
from dominotree_lite.errors import InputError
from dominotree_lite.target import Target
from dominotree_lite.train.author import FREE, KINDS, CorpusConfig, chat_frame, write_corpus
from dominotree_lite.train.corpus import Corpus, load_corpus
from dominotree_lite.train.questions import BOXED, DOMAINS, SOLVE

CONFIG = CorpusConfig(rows=64, row_length=84, user_length=24, template_share=0.0, shard_rows=24, batch=24, min_reply=3)


def chatty(template: str | None = CHAT, bos: bool = True) -> Target:
    return tiny_llama(tokenizer=tiny_tokenizer(template, bos))


@pytest.fixture(scope="module")
def target() -> Target:
    return chatty()


@pytest.fixture(scope="module")
def written(target: Target, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_corpus(target, tmp_path_factory.mktemp("corpus"), CONFIG)


def rows_of(corpus: Corpus) -> list[list[int]]:
    return [corpus.flat[s : s + n].tolist() for s, n in zip(corpus.start, corpus.length, strict=True)]


def read(paths: list[Path], target: Target) -> list[tuple[list[int], list[int], float]]:
    """(prompt, reply, temperature) of every row."""
    corpus = load_corpus(paths, target.vocab_size)
    cut = zip(rows_of(corpus), corpus.reply.tolist(), corpus.temperature.tolist(), strict=True)
    return [(row[:reply], row[reply:], temperature) for row, reply, temperature in cut]


def kinds(paths: list[Path]) -> list[str]:
    """The name of every row's kind."""
    found: list[str] = []
    for path in paths:
        with np.load(path) as file:
            found += [KINDS[number] for number in file["kind"]]
    return found


def turns(paths: list[Path], target: Target) -> Iterator[tuple[str, str]]:
    """(kind, user's words) of every row in the chat template."""
    for kind, (prompt, _, _) in zip(kinds(paths), read(paths, target), strict=True):
        yield kind, text(target, prompt[7:-12])


def text(target: Target, ids: list[int]) -> str:
    return target.tokenizer.decode(ids)  # type: ignore[union-attr, return-value]


# --- rows -----------------------------------------------------------------------------------------------


def test_prompts_are_what_the_chat_template_makes_of_the_user_turn(target: Target, written: list[Path]) -> None:
    rows = read(written, target)
    assert len(rows) > 30
    for prompt, _, _ in rows:
        shape = re.fullmatch(r"<bos><turn>user (.*)<end><turn>assistant ", text(target, prompt), re.DOTALL)
        assert shape is not None and shape[1]
        inside = prompt[7:-12]
        assert END not in inside
        assert prompt[0] == BOS and prompt[-12:] == chat_frame(target).after


def test_user_turns_are_cut_at_their_limit_or_end_by_themselves(target: Target, written: list[Path]) -> None:
    lengths = [len(prompt[7:-12]) for prompt, _, _ in read(written, target)]
    assert 0 < min(lengths) < max(lengths) == CONFIG.user_length


def test_opening_words_take_half_of_the_user_turn_at_most(target: Target, tmp_path: Path) -> None:
    config = replace(CONFIG, user_length=8, opening_share=1.0)
    found = dict(turns(write_corpus(target, tmp_path, config), target))
    begun = {kind: words for kind, words in found.items() if not kind.startswith("asserts")}
    assert begun["docstring, begun"].startswith(SOLVE[:4]) and len(found) == len(DOMAINS)
    assert all(re.match("[A-Z$]", words) for words in begun.values())


def test_replies_end_at_the_end_token_or_at_the_row_length(target: Target, written: list[Path]) -> None:
    ends = Counter()
    for prompt, reply, _ in read(written, target):
        assert len(reply) >= CONFIG.min_reply and END not in reply[:-1]
        full = len(prompt) + len(reply) == CONFIG.row_length
        assert full or reply[-1] == END
        ends[full] += 1
    assert min(ends[True], ends[False]) > 3


def test_greedy_replies_equal_plain_greedy_decoding(target: Target, written: list[Path]) -> None:
    greedy = [(prompt, reply) for prompt, reply, temperature in read(written, target) if temperature == 0]
    for prompt, reply in greedy[::4]:
        settings = GenerationConfig(
            do_sample=False, max_new_tokens=CONFIG.row_length - len(prompt), eos_token_id=END, pad_token_id=END
        )
        ids = torch.tensor([prompt])
        out = target.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        assert out[0, len(prompt) :].tolist() == reply


def test_other_replies_are_drawn_at_their_temperature(target: Target, tmp_path: Path) -> None:
    """At a temperature near 0 they are the greedy ones, at 0.8 hardly any."""
    matches = {}
    for temperature in (1e-4, 0.8):
        config = replace(CONFIG, rows=40, greedy_share=0.0, reply_temperature=temperature)
        rows = read(write_corpus(target, tmp_path / str(temperature), config), target)
        assert [t for _, _, t in rows] == pytest.approx([temperature] * len(rows))
        same = [reply[0] == int(target.model(torch.tensor([p])).logits[0, -1].argmax()) for p, reply, _ in rows]
        matches[temperature] = np.mean(same)
    assert matches[1e-4] == 1 and matches[0.8] < 0.95


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_shares_at_their_ends(share: float, target: Target, tmp_path: Path) -> None:
    config = replace(CONFIG, rows=24, min_reply=1, greedy_share=share, opening_share=share)
    paths = write_corpus(target, tmp_path, config)
    assert {t == 0 for _, _, t in read(paths, target)} == {share == 1}
    assert {kind == FREE for kind in kinds(paths)} == {share == 0}


def test_shares_between(target: Target, tmp_path: Path) -> None:
    config = replace(CONFIG, rows=400, row_length=60, min_reply=1, shard_rows=400, batch=400)
    paths = write_corpus(target, tmp_path, config)
    counts = Counter(kinds(paths))
    # Free rows are dropped more often than those with opening words: their turn may be empty.
    assert counts.pop(FREE) / 400 == pytest.approx(0.4, abs=0.1)
    assert set(counts) == {f"{domain}, begun" for domain in DOMAINS}
    assert max(counts.values()) / sum(counts.values()) < 2 / len(DOMAINS)
    assert np.mean([t == 0 for _, _, t in read(paths, target)]) == pytest.approx(0.6, abs=0.1)


def test_whole_questions_reach_the_target_as_they_are(tmp_path: Path) -> None:
    target = chatty()
    target.max_positions = 700
    config = CorpusConfig(rows=60, row_length=640, user_length=600, template_share=1.0, min_reply=1, batch=60)
    found = Counter(kind for kind, _ in turns(write_corpus(target, tmp_path, config), target))
    assert set(found) == set(DOMAINS)
    for kind, words in turns(list(tmp_path.glob("*.npz")), target):
        if kind == "docstring":
            assert words.startswith(SOLVE) and words.endswith('\n    """\n```')
        elif kind == "asserts":
            assert words.splitlines()[-1].startswith("assert ")
        elif kind in ("word problems", "competition"):
            assert words.endswith(BOXED) or words[-1] in ".?"
        else:
            assert "<" not in words.replace("| <", "") and words[0].isupper()


def test_whole_questions_that_cannot_fit_are_refused(target: Target, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="user_length 6 is too short for whole questions"):
        write_corpus(target, tmp_path / "out", replace(CONFIG, user_length=6, template_share=1.0))
    assert not (tmp_path / "out").exists()


def test_the_models_own_generation_settings_change_nothing(
    target: Target, written: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = GenerationConfig(eos_token_id=END, do_sample=True, repetition_penalty=9.0, top_k=1, temperature=3.0)
    monkeypatch.setattr(target.model, "generation_config", own)
    assert read(write_corpus(target, tmp_path, CONFIG), target) == read(written, target)
    assert target.model.generation_config is own


def test_the_callers_random_numbers_are_left_alone(target: Target, tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    write_corpus(target, tmp_path, replace(CONFIG, rows=5))
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize(("vocabulary", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.int32)])
def test_ids_take_two_bytes_where_they_fit(vocabulary: int, dtype: type, tmp_path: Path) -> None:
    target = tiny_llama(vocabulary, tiny_tokenizer())
    paths = write_corpus(target, tmp_path, replace(CONFIG, rows=4, min_reply=1))
    with np.load(paths[0]) as file:
        assert file["flat"].dtype == dtype
    assert read(paths, target)


# --- templates ------------------------------------------------------------------------------------------


def test_a_target_without_a_template_goes_on_from_an_opening(tmp_path: Path) -> None:
    target = chatty(template=None)
    paths = write_corpus(target, tmp_path, replace(CONFIG, rows=48, min_reply=4))
    assert min(Counter(kind == FREE for kind in kinds(paths)).values()) > 5
    for kind, (prompt, reply, _) in zip(kinds(paths), read(paths, target), strict=True):
        assert prompt[0] == BOS and END not in prompt + reply[:-1] and len(reply) >= 4
        assert len(prompt) == 13 if kind == FREE else 13 < len(prompt) <= 25


def test_replies_of_a_target_without_a_template_are_greedy_too(tmp_path: Path) -> None:
    target = chatty(template=None)
    rows = read(write_corpus(target, tmp_path, replace(CONFIG, rows=48, greedy_share=1.0)), target)
    assert len(rows) > 10
    for prompt, reply, _ in rows:
        assert reply[0] == int(target.model(torch.tensor([prompt])).logits[0, -1].argmax())


def test_without_a_beginning_token_every_row_has_an_opening(tmp_path: Path) -> None:
    target = chatty(template=None, bos=False)
    paths = write_corpus(target, tmp_path, replace(CONFIG, rows=24, opening_share=0.0))
    assert kinds(paths) and FREE not in kinds(paths)


def test_a_turn_ends_at_the_templates_own_marker() -> None:
    """Some templates close a user turn with a token that does not end a reply."""
    frame = chat_frame(chatty("<bos>{{ messages[0]['content'] }}<turn>"))
    assert (frame.before, frame.after, frame.ends) == ("<bos>", [TURN], {END, TURN})
    frame = chat_frame(chatty("<bos>{{ messages[0]['content'] }} Answer:"))
    assert frame.ends == {END}


@pytest.mark.parametrize("template", ["no words", "{{ messages[0]['content'] }} and {{ messages[0]['content'] }}"])
def test_a_template_that_cannot_be_taken_apart_is_refused(template: str) -> None:
    with pytest.raises(InputError, match="does not show the user's words exactly once"):
        chat_frame(chatty(template))


def test_a_target_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tiny-llama has no tokenizer"):
        write_corpus(tiny_llama(), tmp_path, CONFIG)


# --- shards ---------------------------------------------------------------------------------------------


def test_shards_hold_the_rows_asked_for(target: Target, tmp_path: Path) -> None:
    paths = write_corpus(target, tmp_path, replace(CONFIG, min_reply=1, opening_share=1.0))
    assert [path.name for path in paths] == [f"corpus-0000{i}.npz" for i in range(3)]
    counts = []
    for path in paths:
        with np.load(path) as file:
            counts.append(len(file["len"]))
    assert counts == [24, 24, 16]


def test_seeds_differ_and_shards_too(target: Target, written: list[Path], tmp_path: Path) -> None:
    other = write_corpus(target, tmp_path, replace(CONFIG, seed=1))
    texts = [tuple(map(str, read([path], target))) for path in [*written, *other]]
    assert len(set(texts)) == 6
    prompts = Counter(tuple(prompt) for prompt, _, _ in read([*written, *other], target))
    assert max(prompts.values()) < 4


class Killed(BaseException):
    pass


def test_a_killed_run_goes_on_where_it_was(
    target: Target, written: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.os.replace

    def killed(part: Path, path: Path) -> None:
        if path.name == "corpus-00001.npz":
            raise Killed
        real(part, path)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(files.os, "replace", killed)
        write_corpus(target, tmp_path, CONFIG)
    assert [path.name for path in tmp_path.glob("*.npz")] == ["corpus-00000.npz"]
    stamp = (tmp_path / "corpus-00000.npz").stat().st_mtime_ns
    paths = write_corpus(target, tmp_path, CONFIG)
    assert read(paths, target) == read(written, target)
    assert paths[0].stat().st_mtime_ns == stamp
    beside = ["card.md", "seconds.json", "settings.json", "statistics.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*(path.name for path in paths), *beside])
    with (tmp_path / "seconds.json").open() as file:
        assert set(json.load(file)) == {path.name for path in paths}


def test_a_finished_corpus_is_left_as_it_is(
    target: Target, written: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = {path: path.stat().st_mtime_ns for path in written[0].parent.iterdir()}
    monkeypatch.setattr(target, "next_logits", None)
    assert write_corpus(target, written[0].parent, CONFIG) == written
    assert {path: path.stat().st_mtime_ns for path in written[0].parent.iterdir()} == stamps


@pytest.mark.parametrize("change", [{"seed": 1}, {"rows": 10}, {"greedy_share": 0.5}, {"batch": 23}])
def test_other_settings_in_the_same_folder_are_refused(
    change: dict[str, Any], target: Target, written: list[Path]
) -> None:
    with pytest.raises(InputError, match=f"begun with other {next(iter(change))}; use another folder"):
        write_corpus(target, written[0].parent, replace(CONFIG, **change))


def test_unreadable_settings_are_refused(target: Target, tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("[")
    with pytest.raises(InputError, match=r"settings\.json: can't be read"):
        write_corpus(target, tmp_path, CONFIG)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"row_length": 257}, "tiny-llama has 256 positions"),
        ({"row_length": 40}, "leaves no room for a reply after a prompt of up to"),
        ({"user_length": 100}, "leaves no room"),
        ({"min_reply": 90}, "leaves no room"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(
    change: dict[str, Any], complaint: str, target: Target, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=complaint):
        write_corpus(target, tmp_path, replace(CONFIG, **change))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 0},
        {"batch": 0},
        {"seed": -1},
        {"shard_rows": 0},
        {"template_share": -0.1},
        {"opening_share": 1.1},
        {"greedy_share": -0.1},
        {"min_p": 2.0},
        {"reply_temperature": 0.0},
    ],
)
def test_impossible_settings_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="corpus"):
        CorpusConfig(**change)
