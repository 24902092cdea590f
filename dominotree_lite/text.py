"""New text as tokens come in: what is certain is handed on, stop strings end it. It knows no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class TextStream:
    """Turns growing token lists into text, once.

    Text is certain when no later token can change it: an unfinished character waits for its other bytes, and
    the beginning of a stop string waits for its end.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        stop: Sequence[str] = (),
        on_text: Callable[[str], None] | None = None,
    ) -> None:
        self.decode, self.stop, self.on_text = decode, tuple(stop), on_text
        self.stopped = False
        self.text = ""
        self._tokens: list[int] = []
        self._sent = 0

    def ends_with(self, tokens: list[int]) -> bool:
        """Whether a stop string stands in the text now; its tokens are the last ones then."""
        if self.stop and not self.stopped:
            text = self.decode(tokens)
            self.stopped = any(stop in text for stop in self.stop)
        return self.stopped

    def push(self, tokens: list[int]) -> None:
        """Take all tokens so far and hand on what has become certain."""
        self._tokens = tokens
        if self.on_text is not None:
            self.text = self._cut(self.decode(tokens))
            self._send(self._certain())

    def finish(self) -> str:
        """The whole text, cut before the first stop string; what was held back is handed on."""
        self.text = self._cut(self.decode(self._tokens))
        self._send(len(self.text))
        return self.text

    def _cut(self, text: str) -> str:
        found = [place for place in (text.find(stop) for stop in self.stop) if place >= 0]
        return text[: min(found)] if found else text

    def _certain(self) -> int:
        """How much of the text no later token can change."""
        text = self.text.rstrip("\ufffd")
        held = max((n for stop in self.stop for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        return len(text) - held

    def _send(self, end: int) -> None:
        if self.on_text is not None and end > self._sent:
            self.on_text(self.text[self._sent : end])
            self._sent = end
