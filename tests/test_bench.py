"""Evaluations: records against `generate` run by hand, and what a kill or an interrupt leaves."""

import dataclasses
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy_models import KINDS, byte_tokenizer, drafter_config, random_drafter, randomise, target_of, tiny_model

from dominotree_lite.bench import Bench
from dominotree_lite.benching import PEERS as NAMED
from dominotree_lite.cells import Grid
from dominotree_lite.checkpoints import save_drafter
from dominotree_lite.cli import main
from dominotree_lite.decode import generate
from dominotree_lite.drafter import Drafter, DraftModel
from dominotree_lite.errors import InputError
from dominotree_lite.peers import PEERS
from dominotree_lite.prompts import PromptRow, load_prompts, suite_files
from dominotree_lite.records import BenchRecord, load_records
from dominotree_lite.target import Target

PROMPTS = [PromptRow("one", "short", ("Hi",)), PromptRow("two", "long", ("Good morning.", "And then?"))]
METHODS = (*KINDS, *PEERS)


@pytest.fixture(scope="module")
def target() -> Target:
    return target_of(tiny_model("llama", 258, seed=1), eos=1, tokenizer=byte_tokenizer(chat=True))


@pytest.fixture(scope="module")
def drafters(target: Target) -> dict[str, Drafter]:
    return {kind: random_drafter(target, kind) for kind in ("dflash", "domino")}


def measured(one: BenchRecord) -> tuple[object, ...]:
    """All of a record but seconds and the process."""
    fields = dataclasses.asdict(one)
    return tuple(str(v) for k, v in fields.items() if k not in ("run", "seconds", "prefill_seconds", "stages"))


def test_records_hold_what_generate_returns(target: Target, drafters: dict[str, Drafter], tmp_path: Path) -> None:
    grid = Grid(METHODS, budgets=(3, 6), candidates=(30,))
    Bench(target, drafters, grid, max_new_tokens=9).run(PROMPTS, tmp_path / "out.jsonl")
    records = load_records(tmp_path / "out.jsonl").records
    assert len(records) == 2 * (3 + 2 * 4 + 3)  # chains and peers have no budget
    turns = {prompt.id: list(prompt.turns) for prompt in PROMPTS}
    for one in records:
        method = "ar" if one.method in PEERS else one.method
        kind = KINDS[method]
        drafter = drafters[kind] if kind else None
        hand = generate(
            turns[one.id], target, drafter, method=method, budget=one.budget or 64, candidates=30, max_new_tokens=9
        )
        assert one.token_sha256 == hashlib.sha256(",".join(map(str, hand.token_ids)).encode()).hexdigest()
        assert one.divergence is None
        if one.method in KINDS:
            assert (one.rounds, one.tokens) == (len(hand.rounds), sum(len(r.tokens) for r in hand.rounds))
            assert sum(n * count for n, count in enumerate(one.accepted)) == sum(len(r.accepted) for r in hand.rounds)
            assert one.nodes == sum(len(r.tree) for r in hand.rounds)
        assert (one.budget is None) == (one.method in PEERS or one.method in ("ar", "dflash", "domino"))


def test_a_second_run_measures_only_what_is_new(target: Target, drafters: dict[str, Drafter], tmp_path: Path) -> None:
    path, seen = tmp_path / "out.jsonl", list[str]()
    first = Bench(target, drafters, Grid(("ddtree",), (0.0, 1.0), (3,)), max_new_tokens=6)
    first.run(PROMPTS, path)
    more = Bench(target, drafters, Grid(("ar", "ddtree"), (0.0, 1.0), (3,)), max_new_tokens=6)
    more.run(PROMPTS, path, lambda prompt, cell: seen.append(cell.method))
    assert seen == ["ar"] * 4
    before = path.read_bytes()
    more.run(PROMPTS, path)
    assert path.read_bytes() == before


def test_other_weights_or_texts_under_the_same_names_are_refused(
    target: Target, drafters: dict[str, Drafter], tmp_path: Path
) -> None:
    path, grid = tmp_path / "out.jsonl", Grid(("dflash",))
    Bench(target, drafters, grid, max_new_tokens=4).run(PROMPTS, path)
    other = drafters | {"dflash": random_drafter(target, "dflash", seed=5)}
    with pytest.raises(InputError, match="one, dflash T=0: already measured with another text, other weights"):
        Bench(target, other, grid, max_new_tokens=4).run(PROMPTS, path)
    with pytest.raises(InputError, match="already measured with another text"):
        Bench(target, drafters, grid, max_new_tokens=4).run([PromptRow("one", "short", ("Bye",))], path)


def test_names_known_without_torch_are_those_of_the_peers() -> None:
    assert tuple(PEERS) == NAMED


def test_the_shipped_suites_are_eight_of_twelve_or_more() -> None:
    rows = load_prompts(*suite_files())
    counts = {suite: sum(row.suite == suite for row in rows) for suite in {row.suite for row in rows}}
    assert len(counts) == 8 and min(counts.values()) >= 12
    assert all(len(row.turns) == 1 + (row.suite == "mtbench-like") for row in rows)
    assert len({row.turns for row in rows}) == len(rows)
    with pytest.raises(InputError, match="no shipped suite 'x'"):
        suite_files(["x"])


# --- The command -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A command line on a tiny checkpoint."""
    folder = tmp_path_factory.mktemp("shelf")
    model = tiny_model("llama", 258, seed=1)
    model.generation_config.eos_token_id = 1
    model.save_pretrained(folder / "target")
    byte_tokenizer(chat=True).save_pretrained(folder / "target")
    drafter = DraftModel(drafter_config(258, 32, "domino", shift=True))
    randomise(drafter, seed=3)
    save_drafter(drafter, folder / "domino", num_target_layers=3)
    rows = [{"id": f"p{n}", "suite": "s", "turns": [f"Say {n}"]} for n in range(8)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    models = ["--target", str(folder / "target"), "--drafter", str(folder / "domino"), "--device", "cpu"]
    few = ["--budgets", "4,8", "--candidates", "20,full", "--temperatures", "0,1", "--max-new-tokens", "40"]
    return ["bench", "--prompts", str(folder / "prompts.jsonl"), *models, *few]


def test_parts_share_the_prompts(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"{part}.jsonl" for part in (1, 2)]
    for part, file in enumerate(files, start=1):
        more = ["--methods", "ar,domino", "--limit", "3", "--part", f"{part}/2", "--out", str(file)]
        assert main([*words, *more]) == 0
    ids = [sorted({one.id for one in load_records(file).records}) for file in files]
    assert ids == [["p0", "p2"], ["p1"]]
    captured = capsys.readouterr()
    assert f"{files[0]}: 8 records, 8 of them new" in captured.out
    assert "1/8 p0 ar T=0, 00:0" in captured.err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--methods", "ar,tree"], "no method 'tree'"),
        (["--methods", "ddtree"], "method ddtree needs a dflash drafter"),
        (["--methods", "caladaptive"], "run dominotree profile"),
        (["--budgets", "a"], "not a list of values"),
        (["--budgets", "-1"], "budget -1 is too small"),
        (["--candidates", "0"], "candidates 0 is too small"),
        (["--temperatures", "-1"], "temperature -1.0: give 0 or more"),
        (["--part", "3/2"], "is no part: give I/N"),
        (["--part", "9/9"], "there are 8 prompts only"),
        (["--hub", "gsm8k"], "not allowed with argument"),
        (["--seed", str(2**60)], "seed"),
        (["--out", "."], "it is a folder"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    more: list[str], said: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("DOMINOTREE_CACHE", str(tmp_path / "cache"))
    assert main([*words, "--out", str(tmp_path / "out.jsonl"), *more]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and len(captured.err.splitlines()) == 1 and captured.out == ""
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.slow
def test_killed_at_random_moments_it_completes_the_same_records(words: list[str], tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    words = [*words, "--methods", "ar,dominotree,hf-prompt-lookup", "--max-new-tokens", "24"]
    assert main([*words, "--out", str(whole)]) == 0
    run = [sys.executable, "-c", "import sys; from dominotree_lite.cli import main; sys.exit(main())"]
    chance = random.Random(0)
    for number in range(3):
        before = cut.stat().st_size if cut.exists() else 0
        process = subprocess.Popen([*run, *words, "--out", str(cut)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert process.stderr
        try:
            process.stderr.readline()  # its first record
            time.sleep(chance.random() * 0.4)
        finally:
            process.send_signal(2) if number % 2 else process.kill()
            process.stderr.close()
            process.wait(timeout=60)
        load_records(cut)
        assert cut.stat().st_size > before
    assert main([*words, "--out", str(cut)]) == 0
    assert sorted(map(measured, load_records(cut).records)) == sorted(map(measured, load_records(whole).records))
    assert os.listdir(tmp_path).count("cut.jsonl") == 1
