"""The command line: what it prints and writes on a tiny checkpoint, and one line for each mistake."""

import argparse
import dataclasses
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from toy_models import KINDS, byte_tokenizer, drafter_config, randomise, tiny_model

from dominotree_lite import evaluate, prompts
from dominotree_lite.arguments import ENGINES
from dominotree_lite.checkpoints import DRAFTERS, load_drafter, load_target, save_drafter
from dominotree_lite.cli import ALIASES, FIXED, METHODS, build_parser, main
from dominotree_lite.decode import METHODS as DECODED
from dominotree_lite.decode import Settings, generate
from dominotree_lite.drafter import DraftModel
from dominotree_lite.embedded import EMBEDDED
from dominotree_lite.errors import InputError
from dominotree_lite.methods import ENGINES as DECODING_ENGINES
from dominotree_lite.trace import Trace
from dominotree_lite.tracer import record
from dominotree_lite.train import author as writing
from dominotree_lite.train import statistics
from dominotree_lite.train.author import CorpusConfig
from dominotree_lite.train.loop import TrainConfig
from dominotree_lite.train.recipe import KINDS as TRAINED
from dominotree_lite.train.recipe import DrafterSizes
from dominotree_lite.tuning import CALIBRATION
from dominotree_lite.verify import Sampling

Commands = argparse._SubParsersAction
PROMPTS = [
    {"id": "a1", "suite": "a", "turns": ["Hi"]},
    {"id": "a2", "suite": "a", "turns": ["Well?", "And?"]},
    {"id": "b1", "suite": "b", "turns": ["Tell me"]},
]
ROW_KEYS = {
    "method", "suite", "prompts", "tokens", "rounds", "tau", "seconds", "tokens_per_second", "speedup",
    "identical_to_ar",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Shelf:
    """A folder with a tiny target, a drafter of each kind, and a file of prompts."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def compare(self, *more: str) -> list[str]:
        """A command line with both drafters; options in `more` come last and win."""
        drafters = [word for kind in ("dflash", "domino") for word in ("--drafter", self.path(kind))]
        few = ["--budget", "5", "--max-new-tokens", "6", "--device", "cpu"]
        named = ["--prompts", self.path("prompts.jsonl"), "--target", self.path("target")]
        return ["compare", *named, *drafters, *few, *more]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    folder = tmp_path_factory.mktemp("shelf")
    model = tiny_model("llama", 258, seed=1)
    model.generation_config.eos_token_id = 1
    model.save_pretrained(folder / "target")
    byte_tokenizer(chat=True).save_pretrained(folder / "target")
    for kind in ("dflash", "domino"):
        drafter = DraftModel(drafter_config(258, 32, kind, shift=kind == "domino"))
        randomise(drafter, seed=3)
        save_drafter(drafter, folder / kind, num_target_layers=3)
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, PROMPTS)))
    return Shelf(folder)


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "import sys; from dominotree_lite.cli import main; sys.exit(main())", *arguments]


def one_line(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    """The line on standard error of a command that must end with code 2 and print nothing else."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("dominotree: ") and captured.out == ""
    return line


# --- compare ---------------------------------------------------------------------------------------------------


def test_compare_writes_what_generate_gives(shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results" / "out.json"
    assert main(shelf.compare("--json", str(out))) == 0
    written = json.loads(out.read_text())
    assert list(written) == ["settings", "rows", "divergences"]
    assert all(set(row) == ROW_KEYS for row in written["rows"])
    assert [(row["suite"], row["method"]) for row in written["rows"]] == [
        (suite, method) for suite in ("a", "b", "all") for method in FIXED
    ]
    target = load_target(shelf.path("target"), "cpu")
    drafters = {kind: load_drafter(shelf.path(kind), target) for kind in ("dflash", "domino")}
    for row in written["rows"]:
        kind = KINDS[row["method"]]
        drafter = None if kind is None else drafters[kind]
        results = [
            generate(prompt["turns"], target, drafter, method=row["method"], budget=5, max_new_tokens=6)
            for prompt in PROMPTS
            if row["suite"] in ("all", prompt["suite"])
        ]
        assert row["rounds"] == sum(len(result.rounds) for result in results)
        assert row["tokens"] == sum(len(one.tokens) for result in results for one in result.rounds)
        assert row["identical_to_ar"] == row["prompts"] == len(results)
    used = written["settings"]
    assert used["prompts"] == ["prompts.jsonl"]
    assert (used["limit"], used["skip"], used["budget"], used["dtype"]) == (None, 0, 5, "float32")
    assert used["drafters"] == {kind: shelf.path(kind) for kind in ("dflash", "domino")}


def test_both_engines_compare_alike(shelf: Shelf, tmp_path: Path) -> None:
    written = []
    for engine in ("eager", "graph"):
        out = tmp_path / f"{engine}.json"
        assert main(shelf.compare("--methods", "ar,dominotree", "--engine", engine, "--json", str(out))) == 0
        written.append(json.loads(out.read_text()))
        assert written[-1]["settings"]["engine"] == engine and not written[-1]["divergences"]
    counts = [[(row["method"], row["tokens"], row["rounds"]) for row in one["rows"]] for one in written]
    assert counts[0] == counts[1]


def test_compare_prints_a_plain_table_into_a_pipe(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shelf.compare("--methods", "ar,domino", "--temperature", "1")) == 0
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
    rows = [line.split() for line in captured.out.splitlines()]
    assert [row[:3] for row in rows if row and row[0] in ("a", "b", "all")] == [
        ["a", "ar", "2"], ["a", "domino", "2"],
        ["b", "ar", "1"], ["b", "domino", "1"],
        ["all", "ar", "3"], ["all", "domino", "3"],
    ]  # fmt: skip
    assert all(row[6] == "-" for row in rows if row and row[0] == "all")  # at T > 0 nothing is the same by right
    assert captured.err.splitlines() == ["1/3 a1", "2/3 a2", "3/3 b1"]


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_framed_table_and_a_bar_unless_in_ci(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, Screen())
    monkeypatch.setenv("CI", "1")
    monkeypatch.setenv("TERM", "xterm")
    command = shelf.compare("--methods", "ar", "--limit", "1")
    assert main(command) == 0
    assert "\x1b" not in sys.stdout.getvalue() and "│" not in sys.stdout.getvalue()
    assert sys.stderr.getvalue().splitlines() == ["1/2 a1", "2/2 b1"]
    monkeypatch.delenv("CI")
    assert main(command) == 0
    assert "\x1b" in sys.stdout.getvalue() and "│" in sys.stdout.getvalue()
    assert "2/2 [" in sys.stderr.getvalue()


def test_limit_skip_and_records(shelf: Shelf, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    more = ["--methods", "ar,ddtree", "--limit", "1", "--skip", "1", "--records", "--json", str(out)]
    assert main(shelf.compare(*more)) == 0
    records = json.loads(out.read_text())["per_prompt"]
    assert [(r["id"], r["method"]) for r in records] == [("a2", "ar"), ("a2", "ddtree")]
    wanted = {"id", "suite", "method", "tokens", "rounds", "seconds", "stages", "token_sha256", "position", "margin"}
    assert all(set(record) == wanted for record in records)


def test_methods_follow_from_the_drafters_given(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--limit", "1", "--max-new-tokens", "3"]
    named = ["compare", "--prompts", shelf.path("prompts.jsonl"), "--target", shelf.path("target"), *few]
    assert main([*named, "--drafter", shelf.path("dflash")]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[1] for row in table if row and row[0] == "all"] == ["ar", "dflash", "ddtree"]


def test_a_text_that_differs_is_printed(
    shelf: Shelf, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = evaluate.decode

    def wrong(prompt, target, drafter, settings):
        result = right(prompt, target, drafter, settings)
        changed = [*result.token_ids[:-1], (result.token_ids[-1] + 1) % 258]
        return dataclasses.replace(result, token_ids=changed) if settings.method == "domino" else result

    monkeypatch.setattr(evaluate, "decode", wrong)
    assert main(shelf.compare("--methods", "ar,domino", "--skip", "0", "--limit", "1")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("domino: differs from ar at new token 5" in line for line in lines) == 2


# --- trace and view --------------------------------------------------------------------------------------------


def trace_of(shelf: Shelf, out: Path, *more: str) -> list[str]:
    few = ["--budget", "5", "--max-new-tokens", "6", "--rounds", "2", "--device", "cpu", "--out", str(out)]
    named = ["--prompts", shelf.path("prompts.jsonl"), "--target", shelf.path("target")]
    return ["trace", *named, "--drafter", shelf.path("domino"), *few, *more]


def test_trace_writes_what_record_gives(shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "trace.json"
    assert main(trace_of(shelf, out, "--temperature", "0.7", "--seed", "3", "--limit", "1")) == 0
    captured = capsys.readouterr()
    target = load_target(shelf.path("target"), "cpu")
    drafter = load_drafter(shelf.path("domino"), target)
    rows = prompts.load_prompts(shelf.path("prompts.jsonl"), limit_per_suite=1)
    settings = Settings(budget=5, max_new_tokens=6, sampling=Sampling(0.7), seed=3)
    trace = Trace.load(out)
    assert trace == record(rows, target, drafter, settings, 2)
    assert [prompt.id for prompt in trace.prompts] == ["a1", "b1"]
    assert captured.out == f"{out}: 2 prompts, {sum(len(p.rounds) for p in trace.prompts)} rounds, {trace.size} nodes\n"
    assert captured.err.splitlines() == ["1/2 a1", "2/2 b1"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--rounds", "0"], "rounds 0 is too small"),
        (["--budget", "-1"], "budget -1 is too small"),
        (["--max-new-tokens", "1"], "ask for more new tokens"),
        (["--top-k", "3"], "unrecognized arguments: --top-k"),
        (["--out", "."], "can't be written (it is a folder)"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl: can't be read"),
    ],
)
def test_a_mistake_in_a_trace_is_one_line(
    shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert main(trace_of(shelf, tmp_path / "x.json", *more)) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]  # below the lines of progress
    assert list(tmp_path.iterdir()) == []


def test_a_trace_needs_a_domino_drafter(shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = trace_of(shelf, tmp_path / "x.json")
    words[words.index("--drafter") + 1] = shelf.path("dflash")
    assert "name one with --drafter" in one_line(capsys, words)


def test_view_makes_a_page_of_a_trace(shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("anywidget", reason="the theatre needs the extra viz")
    trace = tmp_path / "trace.json"
    assert main(trace_of(shelf, trace, "--limit", "1")) == 0
    capsys.readouterr()
    for more, page in (
        ([], tmp_path / "trace.html"),
        (["--out", str(tmp_path / "b" / "x.html")], tmp_path / "b/x.html"),
    ):
        assert main(["view", str(trace), *more]) == 0
        assert capsys.readouterr().out == f"{page}\n"
        assert "Tell me" in page.read_text(encoding="utf-8")
    assert "the page would take the trace's place" in one_line(capsys, ["view", str(trace), "--out", str(trace)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "can't be read (No such file or directory)"),
        ("[" * 100_000, "not JSON in UTF-8"),
        ('{"format": "other"}', "not a trace"),
        ('{"format": "dominotree-trace", "version": 2}', "version 2; only version 1 can be read"),
        ('{"format": "dominotree-trace", "version": 1, "target": Infinity}', "it holds Infinity"),
        ('{"format": "dominotree-trace", "version": 1, "target": "x"}', "it has no drafter"),
    ],
)
def test_a_bad_trace_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    pytest.importorskip("anywidget", reason="the theatre needs the extra viz")
    bad = tmp_path / "bad.json"
    if text is not None:
        bad.write_text(text)
    line = one_line(capsys, ["view", str(bad)])
    assert f"{bad}: {said}" in line
    assert not (tmp_path / "bad.html").exists()


# --- Mistakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--methods", "ar,tree"], "no method 'tree'; there are ar, dflash"),
        (["--methods", ""], "no method ''"),
        (["--methods", "ar,ar"], "each once"),
        (["--budget", "many"], "argument --budget: invalid int value: 'many'"),
        (["--budget", "-1"], "budget -1 is too small"),
        (["--candidates", "most"], "'most' is neither a number nor full"),
        (["--candidates", "0"], "candidates 0 is too small"),
        (["--temperature", "-1"], "temperature -1.0: give 0 or more"),
        (["--temperature", "nan"], "temperature nan"),
        (["--top-p", "0"], "0 < top_p <= 1"),
        (["--max-new-tokens", "-1"], "max_new_tokens -1 is too small"),
        (["--limit", "0"], "limit of 1 or more"),
        (["--skip", "9"], "no prompt is left"),
        (["--threads", "0"], "threads 0 is too small"),
        (["--device", "abacus"], "device abacus: give cpu, cuda or cuda:N"),
        (["--device", "cuda:99"], "device cuda:99: torch sees"),
        (["--dtype", "int8"], "argument --dtype: invalid choice"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl: can't be read"),
        (["--target", "nowhere/at/all"], "target nowhere/at/all: can't be loaded"),
        (["--drafter", "nothing"], "drafter nothing: no config.json there"),
        (["--json", "."], "can't be written (it is a folder)"),
        (["--colour"], "unrecognized arguments: --colour (see dominotree --help)"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(
    shelf: Shelf, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert said in one_line(capsys, shelf.compare(*more))


def test_drafters_must_fit_the_methods_and_each_other(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    assert "are both dflash: give one" in one_line(capsys, shelf.compare("--drafter", shelf.path("dflash")))
    named = ["compare", "--prompts", shelf.path("prompts.jsonl"), "--target", shelf.path("target")]
    assert "method domino needs a domino drafter" in one_line(capsys, [*named, "--methods", "domino"])


def test_a_bad_prompt_is_named_by_file_and_line(
    shelf: Shelf, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"id": "x", "suite": "y"}\n')
    assert "bad.jsonl, line 1: no turns" in one_line(capsys, shelf.compare("--prompts", str(tmp_path / "bad.jsonl")))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["sing"], "invalid choice: 'sing'"),
        (["compare"], "required: --prompts (see dominotree compare --help)"),
        (["demo", "--max-new-tokens", "-1"], "max_new_tokens -1 is too small"),
        (["fetch", "gpt"], "no embedded model is called 'gpt'"),
        (["trace", "--prompts", "x"], "required: --out"),
        (["view"], "required: FILE.json"),
        (["train"], "required: STAGE"),
        (["train", "corpus"], "required: --out"),
        (["train", "corpus", "--out", "x", "--rows", "0"], "must be at least 1"),
        (["train", "corpus", "--out", __file__], "can't be written"),
        (["train", "drafter", "x.npz", "--out", "x", "--steps", "0"], "must be positive"),
        (["train", "drafter", "x.npz", "--out", __file__], "can't be written"),
        (["demo", "--out", __file__], "can't be written"),
        (["train", "drafter", "x.npz", "--out", "x", "--layers", "0"], "impossible sizes"),
    ],
)
def test_every_command_refuses_in_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert said in one_line(capsys, arguments)


def test_a_mistake_shows_no_traceback_in_a_process_of_its_own(tmp_path: Path) -> None:
    bad = command("compare", "--prompts", str(tmp_path / "none.jsonl"))
    done = subprocess.run(bad, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("dominotree: ") and "none.jsonl" in line


def test_a_reader_that_goes_away_costs_no_results(shelf: Shelf, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    read, write = os.pipe()
    os.close(read)
    arguments = shelf.compare("--methods", "ar", "--limit", "1", "--json", str(out))
    process = subprocess.run(command(*arguments), stdout=write, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(write)
    assert process.returncode == 1
    assert process.stderr.splitlines() == ["1/2 a1", "2/2 b1"]
    assert json.loads(out.read_text())["rows"]


def test_an_interrupt_is_one_line_and_code_130(
    shelf: Shelf, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(evaluate, "decode", interrupted)
    assert main(shelf.compare()) == 130
    assert capsys.readouterr().err == "dominotree: interrupted\n"


# --- train and fetch -------------------------------------------------------------------------------------------


def test_a_corpus_is_written_and_a_drafter_trained_on_it(
    shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, text, made = shelf.path("target"), tmp_path / "text", tmp_path / "drafter"
    rows = [
        "--rows",
        "200",
        "--row-length",
        "150",
        "--user-length",
        "8",
        "--batch",
        "200",
        "--template-share",
        "0",
        "--threads",
        "1",
    ]
    assert main(["train", "corpus", "--target", target, "--out", str(text), *rows, "--device", "cpu"]) == 0
    file, counts = capsys.readouterr().out.splitlines()
    assert file == str(text / "corpus-00000.npz")
    assert re.fullmatch(r"\d+ rows, [\d,]+ tokens \([\d,]+ in replies\) in [\d.]+ s: [\d,]+ tokens/s", counts)
    sizes = ["--layers", "1", "--features", "2", "--block", "4", "--mask-token-id", "2"]
    short = ["--steps", "3", "--rows", "2", "--anchors", "2", "--evaluate-every", "2", "--threads", "1"]
    train = ["train", "drafter", str(text), "--target", target, "--out", str(made), *sizes, *short]
    assert main([*train, "--max-seconds", "0"]) == 0
    assert "not finished" in capsys.readouterr().out
    assert main(train) == 0
    assert capsys.readouterr().out == f"{made}\n"
    drafter = load_drafter(str(made), load_target(target, "cpu"))
    assert (drafter.kind, drafter.config.block_size, drafter.horizon) == ("domino", 4, 4)


def test_options_of_train_arrive(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[CorpusConfig, tuple[Path, ...]]] = []
    monkeypatch.setattr(
        writing, "write_corpus", lambda target, folder, config, avoid: seen.append((config, avoid)) or []
    )
    monkeypatch.setattr(statistics, "summary", lambda folder: "")
    options = {
        "rows": 3, "row_length": 99, "user_length": 9, "template_share": 0.3, "opening_share": 0.1,
        "greedy_share": 0.25, "reply_temperature": 0.5, "batch": 2, "shard_rows": 4, "seed": 5,
    }  # fmt: skip
    words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    words += ["--avoid", "a.jsonl", "--avoid", "b.jsonl"]
    assert main(["train", "corpus", "--target", shelf.path("target"), "--out", str(tmp_path / "x"), *words]) == 0
    assert seen == [(CorpusConfig(**options), (Path("a.jsonl"), Path("b.jsonl")))]


# --- Help and defaults -----------------------------------------------------------------------------------------


def defaults(*arguments: str) -> dict[str, object]:
    return vars(build_parser().parse_args(arguments))


def test_names_known_without_torch_are_those_of_the_modules() -> None:
    assert list(METHODS) == list(DECODED)
    assert ENGINES == DECODING_ENGINES
    assert set(ALIASES) == set(EMBEDDED)
    for drafters in ALIASES.values():
        assert all((DRAFTERS / name / "config.json").is_file() for name in drafters)


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (["compare", "--prompts", "x"], Settings()),
        (["compare", "--prompts", "x"], Settings().sampling),
        (["train", "corpus", "--out", "x"], CorpusConfig()),
        (["trace", "--prompts", "x", "--out", "x"], Settings()),
        (["trace", "--prompts", "x", "--out", "x"], Settings().sampling),
        (["train", "drafter", "x", "--out", "x"], TrainConfig()),
        (["train", "drafter", "x", "--out", "x"], DrafterSizes()),
    ],
)
def test_defaults_are_those_of_the_settings(arguments: list[str], settings: object) -> None:
    given, wanted = defaults(*arguments), dataclasses.asdict(settings)
    shared = given.keys() & wanted.keys()
    assert len(shared) >= 3
    shared -= {"max_new_tokens"} if arguments[0] == "trace" else set()  # a trace is to stay small
    assert {key: given[key] for key in shared} == {key: wanted[key] for key in shared}


def test_kinds_of_drafter_are_those_that_train() -> None:
    for kind in TRAINED:
        assert defaults("train", "drafter", "x", "--out", "x", "--kind", kind)["kind"] == kind
    with pytest.raises(InputError, match="invalid choice"):
        defaults("train", "drafter", "x", "--out", "x", "--kind", "eagle")


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    groups = [action for action in parser._actions if isinstance(action, Commands)]
    if not groups:
        yield parser
    for group in groups:
        for child in group.choices.values():
            yield from leaves(child)


@pytest.mark.parametrize("parser", list(leaves(build_parser())), ids=lambda parser: parser.prog)
def test_every_option_says_what_it_is_and_its_default(parser: argparse.ArgumentParser) -> None:
    shown = " ".join(parser.format_help().split())
    for action in parser._actions:
        assert action.help
        if action.option_strings and action.default not in (None, argparse.SUPPRESS) and action.nargs != 0:
            assert f"{action.help} (default: {action.default})" in shown


def test_help_of_a_command_ends_with_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["compare", "--help"])
    assert stopped.value.code == 0
    assert "--max-new-tokens N" in capsys.readouterr().out


# --- demo ------------------------------------------------------------------------------------------------------


@pytest.mark.model
def test_the_demo_prints_a_table_a_text_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("networkx", reason="the picture needs the extra viz")
    one = tmp_path / "one.jsonl"
    one.write_text(prompts.DEMO.read_text().splitlines()[0])
    monkeypatch.setattr(prompts, "DEMO", one)
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out), "--max-new-tokens", "4", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    table = [line.split() for line in printed.splitlines()]
    assert [row[1] for row in table if row and row[0] == "all"] == list(FIXED)
    assert "dominotree answers: " in printed and "the picture: round " in printed
    assert {path.name for path in out.iterdir()} == {"comparison.json", "trees.png", "trees.svg"}
    rows = json.loads((out / "comparison.json").read_text())["rows"]
    assert {row["identical_to_ar"] for row in rows if row["suite"] == "all"} == {1}


# --- profile and calibrate -------------------------------------------------------------------------------------


def test_adaptive_methods_run_after_profile_and_calibrate_and_name_them_before(
    shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOMINOTREE_CACHE", str(tmp_path))
    drafters = [word for kind in ("dflash", "domino") for word in ("--drafter", shelf.path(kind))]
    models = ["--target", shelf.path("target"), *drafters, "--device", "cpu"]
    compared = shelf.compare("--methods", "ar,caddtree,condadaptive,caladaptive", "--max-budget", "6")
    assert f"run dominotree profile --target {shelf.path('target')}" in one_line(capsys, compared)
    few = ["--contexts", "8,32", "--max-budget", "8", "--repeats", "1"]
    assert main(["profile", *models, *few]) == 0
    printed = capsys.readouterr().out
    assert printed.count("verify by nodes 0: ") == 2 and str(tmp_path) in printed
    assert "run dominotree calibrate" in one_line(capsys, compared)
    prompts = ["--prompts", shelf.path("prompts.jsonl"), "--budget", "6", "--max-new-tokens", "8"]
    try:
        assert main(["calibrate", *models, *prompts]) == 0
        assert "promised " in capsys.readouterr().out
        out = tmp_path / "out.json"
        assert main([*compared, "--json", str(out)]) == 0
    finally:
        (shelf.folder / "domino" / "calibration.json").unlink()
    rows = [row for row in json.loads(out.read_text())["rows"] if row["suite"] == "all"]
    assert {row["method"]: row["identical_to_ar"] for row in rows} == dict.fromkeys(
        ("ar", "caddtree", "condadaptive", "caladaptive"), 3
    )


@pytest.mark.parametrize(
    "words", [["--contexts", "a,b"], ["--contexts", "1"], ["--repeats", "0"], ["--max-budget", "1"]]
)
def test_a_profile_of_nothing_is_one_line(words: list[str], shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    named = ["--target", shelf.path("target"), "--drafter", shelf.path("domino"), "--device", "cpu"]
    assert one_line(capsys, ["profile", *named, *words])


def test_the_prompts_a_map_is_fitted_on_are_none_of_the_demo_s() -> None:
    ours, shown = (
        {turn for row in prompts.load_prompts(file) for turn in row.turns} for file in (CALIBRATION, prompts.DEMO)
    )
    assert len(ours) >= 20 and not ours & shown
