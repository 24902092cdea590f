"""Streamed text against decoding everything at once, over random bytes, cut characters and stop strings."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from toy_models import byte_tokenizer

from dominotree_lite.text import TextStream


def as_text(tokens: list[int]) -> str:
    """A token is a byte; an unfinished or broken character shows as U+FFFD, as tokenizers do it."""
    return bytes(tokens).decode("utf-8", errors="replace")


def whole(tokens: list[int], stop: Sequence[str]) -> tuple[int, str]:
    """How many tokens are used, and the text before the first stop string that gets complete."""
    for count in range(1, len(tokens) + 1):
        text = as_text(tokens[:count])
        places = [text.index(s) for s in stop if s in text]
        if places:
            return count, text[: min(places)]
    return len(tokens), as_text(tokens)


def streamed(tokens: list[int], stop: Sequence[str], round_sizes: Sequence[int]) -> tuple[int, str, list[str]]:
    """The same through a stream fed as the round loop does it: token by token, pushed a round at a time."""
    pieces: list[str] = []
    stream = TextStream(as_text, stop, pieces.append)
    taken: list[int] = []
    sizes = list(round_sizes)
    while len(taken) < len(tokens) and not stream.stopped:
        for token in tokens[len(taken) :][: sizes.pop(0) if sizes else 1]:
            taken.append(token)
            if stream.ends_with(taken):
                break
        stream.push(taken)
        assert stream.stopped or as_text(tokens).startswith("".join(pieces))
    return len(taken), stream.finish(), pieces


TEXT = st.text(alphabet="ab é€😀\n", max_size=12)


@settings(deadline=None, max_examples=300)
@given(
    TEXT.map(lambda text: list(text.encode()))
    | st.lists(st.sampled_from([97, 98, 0x80, 0xE2, 0x82, 0xAC, 0xF0]), max_size=12),
    st.lists(st.text(alphabet="ab é€", min_size=1, max_size=3), max_size=3),
    st.lists(st.integers(1, 5), max_size=6),
)
@example(list(b"aab"), ["ab"], [2])  # the second a may begin the stop string, the first may not
@example(list(b"abab!"), ["abac"], [1])
@example(list("a€".encode()), ["€"], [3])
@example(list(b"abc"), ["bcd", "abc"], [2])  # held back for one, cut before by the other
def test_a_stream_gives_the_text_that_decoding_at_once_gives(
    tokens: list[int], stop: list[str], sizes: list[int]
) -> None:
    count, text, pieces = streamed(tokens, stop, sizes)
    assert (count, text) == whole(tokens, stop)
    assert "".join(pieces) == text
    assert all(pieces)


def test_pieces_come_as_soon_as_they_are_certain() -> None:
    pieces: list[str] = []
    stream = TextStream(as_text, ["END"], pieces.append)
    seen, tokens = [], list("hé Ex".encode())
    for count in range(1, len(tokens) + 1):
        stream.push(tokens[:count])
        seen.append("".join(pieces))
    assert seen == ["h", "h", "hé", "hé ", "hé ", "hé Ex"]


def test_without_a_callback_the_text_is_the_same() -> None:
    stream = TextStream(as_text, ["lo"])
    tokens = list(b"hello")
    assert not stream.ends_with(tokens[:4])
    assert stream.ends_with(tokens)
    stream.push(tokens)
    assert stream.finish() == "hel"


def test_nothing_is_handed_on_for_no_tokens() -> None:
    pieces: list[str] = []
    stream = TextStream(as_text, ["x"], pieces.append)
    stream.push([])
    assert (stream.finish(), pieces) == ("", [])


@pytest.mark.parametrize("text", ["Grüße, 😀 你好", "a\n b\t ", "don't . stop ,"])
def test_a_real_tokenizer_streams_character_by_character(text: str) -> None:
    tokenizer = byte_tokenizer()
    ids, pieces = tokenizer(text)["input_ids"], []
    assert len(ids) == len(text.encode())
    stream = TextStream(tokenizer.decode, on_text=pieces.append)
    for count in range(1, len(ids) + 1):
        stream.push(ids[:count])
    assert stream.finish() == text
    assert pieces == list(text)
