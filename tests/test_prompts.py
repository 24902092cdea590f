"""Prompt files: what is read, in which order, and what each mistake is told."""

import json
from pathlib import Path

import pytest

from dominotree_lite.errors import InputError
from dominotree_lite.prompts import DEMO, PromptRow, load_prompts


def line(id: object, suite: object = "a", turns: object = ("Hi",), **more: object) -> str:
    turns = list(turns) if isinstance(turns, tuple) else turns
    return json.dumps({"id": id, "suite": suite, "turns": turns, **more})


def written(folder: Path, *lines: str, name: str = "some.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_rows_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, line("2", "b"), "", line("1", "a", ("One", "Two")), "")
    assert load_prompts(path) == [PromptRow("2", "b", ("Hi",)), PromptRow("1", "a", ("One", "Two"))]


def test_line_separators_other_than_newline_stay_inside_a_text(tmp_path: Path) -> None:
    text = "a\u2028b\x85c\x0cd"
    path = written(tmp_path, json.dumps({"id": "1", "suite": "s", "turns": [text]}, ensure_ascii=False))
    assert load_prompts(path)[0].turns == (text,)


def test_a_byte_order_mark_windows_line_ends_and_further_keys_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + line("1", answer=4).encode() + b"\r\n" + line("2").encode() + b"\r\n")
    assert [row.id for row in load_prompts(path)] == ["1", "2"]


@pytest.mark.parametrize(
    ("limit", "skip", "kept"),
    [
        (None, 0, "a1 b1 a2 b2 a3 c1"),
        (1, 0, "a1 b1 c1"),
        (2, 0, "a1 b1 a2 b2 c1"),
        (1, 1, "a2 b2"),
        (None, 2, "a3"),
        (9, 1, "a2 b2 a3"),
    ],
)
def test_limit_and_skip_count_within_each_suite_over_all_files(
    tmp_path: Path, limit: int | None, skip: int, kept: str
) -> None:
    first = written(tmp_path, *(line(id, id[0]) for id in ("a1", "b1", "a2")), name="first.jsonl")
    second = written(tmp_path, *(line(id, id[0]) for id in ("b2", "a3", "c1")), name="second.jsonl")
    rows = load_prompts(first, second, limit_per_suite=limit, skip=skip)
    assert [row.id for row in rows] == kept.split()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ('{"id": "1"', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1, 2]", "not an object"),
        ('{"id": "1", "suite": "a"}', "no turns"),
        ("{}", "no id, suite, turns"),
        (line(7), "id is 7"),
        (line(" "), "id is ' '"),
        (line("1", None), "suite is None"),
        (line("1", "all"), "'all' is the name of all suites together"),
        (line("1", turns="Hi"), "turns must be a list"),
        (line("1", turns=[]), "turns must be a list"),
        (line("1", turns=["Hi", 3]), "turns must be a list"),
        (line("1", turns=["Hi", ""]), "turns must be a list"),
        ('{"id": "1", "suite": "a", "turns": ["\\ud800"]}', "turns must be a list"),
        (line("0"), "id '0' is already at"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path, bad: str, said: str) -> None:
    path = written(tmp_path, line("0"), "", bad)
    with pytest.raises(InputError) as error:
        load_prompts(path)
    message = str(error.value)
    assert message.startswith(f"{path}, line 3: ") and said in message
    assert "\n" not in message


def test_an_id_may_not_come_back_in_another_file(tmp_path: Path) -> None:
    first, second = written(tmp_path, line("1")), written(tmp_path, line("1"), name="other.jsonl")
    with pytest.raises(InputError, match=r"other\.jsonl, line 1: id '1' is already at .*some\.jsonl, line 1"):
        load_prompts(first, second)


def test_files_that_hold_no_prompts_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.jsonl: can't be read"):
        load_prompts(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="can't be read"):
        load_prompts(tmp_path)
    with pytest.raises(InputError, match=r"some\.jsonl: empty"):
        load_prompts(written(tmp_path, "", "  "))
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": "\xe9"}')
    with pytest.raises(InputError, match=r"latin\.jsonl: not UTF-8 at byte 8"):
        load_prompts(tmp_path / "latin.jsonl")


def test_limits_that_leave_nothing_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, line("1"))
    with pytest.raises(InputError, match="no prompt is left"):
        load_prompts(path, skip=1)
    for limit, skip in ((0, 0), (-1, 0), (1, -1)):
        with pytest.raises(InputError, match="limit of 1 or more and a skip of 0 or more"):
            load_prompts(path, limit_per_suite=limit, skip=skip)


def test_the_shipped_prompts_cover_several_suites_and_a_conversation() -> None:
    rows = load_prompts(DEMO)
    assert len({row.suite for row in rows}) >= 4
    assert max(len(row.turns) for row in rows) > 1
