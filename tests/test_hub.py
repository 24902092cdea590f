"""Benchmarks by name: their wording, and what a missing package, network or field is told."""

import json
import sys
from pathlib import Path

import pytest

from dominotree_lite.errors import InputError
from dominotree_lite.hub import BENCHMARKS, load_benchmarks, prompts_of

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
ROWS = {
    "gsm8k": ({"question": "1 + 1?", "answer": "2"}, ("1 + 1?\n" + BOXED,)),
    "math500": ({"problem": "x?"}, ("x?\n" + BOXED,)),
    "aime25": ({"problem": "y?"}, ("y?\n" + BOXED,)),
    "humaneval": (
        {"prompt": "def f():"},
        (
            "Write a solution to the following problem and make sure that it passes the tests:\n"
            "```python\ndef f():\n```",
        ),
    ),
    "mbpp": (
        {"prompt": "Write f.", "test_list": ["assert f()", "assert g()"]},
        ("Write f. Your code should pass these tests:\n\nassert f()\nassert g()",),
    ),
    "mtbench": ({"prompt": ["Hi", "And?"]}, ("Hi", "And?")),
    "alpaca": ({"instruction": "Sort.", "input": "b a"}, ("Sort.\n\nInput:\nb a",)),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_worded_as_the_field_words_them(name: str) -> None:
    row, turns = ROWS[name]
    (prompt,) = prompts_of(name, [row])
    assert (prompt.id, prompt.suite, prompt.turns) == (f"{name}-0", name, turns)


def test_livecodebench_says_where_to_read_from() -> None:
    plain, started = prompts_of(
        "livecodebench",
        [{"question_content": "Add.", "starter_code": ""}, {"question_content": "Add.", "starter_code": "class S:"}],
    )
    assert "standard input" in plain.turns[0] and "class S:" in started.turns[0]
    assert all("Add." in one.turns[0] for one in (plain, started))


def test_every_benchmark_refuses_a_row_without_its_fields() -> None:
    for name in BENCHMARKS:
        with pytest.raises(InputError, match=f"{name}, row 0: "):
            prompts_of(name, [{"colour": 1}])


def test_an_unknown_name_and_a_missing_package_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no benchmark 'x'; there are gsm8k"):
        load_benchmarks(["x"])
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="need datasets: pip install datasets"):
        load_benchmarks(["gsm8k"])


def test_a_copy_of_a_data_set_is_read_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="benchmarks of the hub need the package datasets")
    (tmp_path / "gsm8k").mkdir()
    lines = [json.dumps({"question": text, "answer": "1"}) for text in ("One?", "Two?")]
    (tmp_path / "gsm8k" / "test.jsonl").write_text("\n".join(lines))
    rows = load_benchmarks(["gsm8k"], tmp_path)
    assert [row.turns[0].splitlines()[0] for row in rows] == ["One?", "Two?"]
    with pytest.raises(InputError, match=r"math500: .* can't be loaded"):
        load_benchmarks(["math500"], tmp_path)
