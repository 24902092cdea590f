"""Training text: rows of token ids the target wrote itself, on disk and as batches.

A corpus file is an npz of `flat` (uint16 or int32 token ids, rows end to end), `len` (tokens a row), `ast`
(index of the reply's first token in its row) and `temp` (the reply's temperature, 0 is greedy); other keys are
passed over. This file does not know how the rows are written (author.py), or what is learnt from them (losses.py).
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError

HOLD_OUT = 64  # one row in so many is never trained on
PAD_TO = 64  # row lengths are rounded up to this, so that few shapes occur
CHUNK = 32  # batches sorted by length together: little padding, still shuffled


@dataclass(frozen=True)
class Corpus:
    """Rows of tokens. `start[i]` is where row i begins in `flat`; `reply[i]` is relative to the row."""

    flat: np.ndarray  # int [sum of lengths]
    start: np.ndarray  # int64 [rows]
    length: np.ndarray  # int64 [rows]
    reply: np.ndarray  # int64 [rows]
    temperature: np.ndarray  # float32 [rows]

    def __len__(self) -> int:
        return len(self.start)

    def select(self, rows: np.ndarray) -> Corpus:
        """The same text seen through fewer rows."""
        return Corpus(self.flat, self.start[rows], self.length[rows], self.reply[rows], self.temperature[rows])

    def held_out(self) -> np.ndarray:
        """Boolean [rows]: rows never trained on. By a hash of the row's text, so no reordering changes it."""
        digests = (
            hashlib.sha256(self.flat[s : s + n].astype("<i4").tobytes()).digest()[0]
            for s, n in zip(self.start, self.length, strict=True)
        )
        return np.fromiter((d % HOLD_OUT == 0 for d in digests), bool, len(self))


def load_corpus(paths: list[Path], vocab_size: int) -> Corpus:
    """Read npz files into one corpus; rows whose reply has fewer than two tokens are left out.

    Raises InputError naming the file if it is missing, misses a key, contradicts itself, or has ids outside
    the vocabulary.
    """
    if not paths:
        raise InputError("no corpus files given")
    parts = [_load_file(path, vocab_size) for path in paths]
    lengths = np.concatenate([part[1] for part in parts])
    corpus = Corpus(
        flat=np.concatenate([part[0] for part in parts]),
        start=np.concatenate([[0], np.cumsum(lengths)[:-1]]),
        length=lengths,
        reply=np.concatenate([part[2] for part in parts]),
        temperature=np.concatenate([part[3] for part in parts]),
    )
    return corpus.select(np.flatnonzero(corpus.length - corpus.reply >= 2))


def _load_file(path: Path, vocab_size: int) -> list[np.ndarray]:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            flat, length, reply, temp = (file[key] for key in ("flat", "len", "ast", "temp"))
    except (OSError, EOFError, TypeError, ValueError, KeyError, BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: not a corpus file ({error})") from error
    if any(part.ndim != 1 for part in (flat, length, reply, temp)):
        raise InputError(f"{path}: flat, len, ast and temp must be plain lists")
    if any(part.dtype.kind not in "iu" for part in (flat, length, reply)) or temp.dtype.kind not in "iuf":
        raise InputError(f"{path}: flat, len and ast must be whole numbers, temp numbers")
    length, reply = length.astype(np.int64), reply.astype(np.int64)
    if not len(length) == len(reply) == len(temp) or int(length.sum()) != len(flat):
        raise InputError(f"{path}: row lengths do not add up to the text")
    if (reply < 0).any() or (reply > length).any():
        raise InputError(f"{path}: a reply begins outside its row")
    for token in [int(flat.min()), int(flat.max())] if len(flat) else []:
        if not 0 <= token < vocab_size:
            raise InputError(f"{path}: token {token} is outside a vocabulary of {vocab_size}")
    return [flat, length, reply, temp.astype(np.float32)]


@dataclass(frozen=True)
class Batch:
    """`ids` [B, S] right-padded with 0, `lengths` [B], `anchors` [B, A]: positions inside the replies."""

    ids: Tensor
    lengths: Tensor
    anchors: Tensor


class Batches:
    """An endless, seeded stream of batches: any step can be asked for, so a resume is exact.

    Anchors are drawn from a row's `places` where these are given (a list of positions a row), else from its reply.
    """

    def __init__(
        self,
        corpus: Corpus,
        rows: int,
        anchors: int,
        seed: int,
        device: str | torch.device,
        places: Sequence[np.ndarray] | None = None,
    ) -> None:
        if len(corpus) < max(rows, 1):
            raise InputError(f"the corpus has {len(corpus)} rows to train on, a batch needs {rows}")
        self.corpus, self.rows, self.anchors, self.seed, self.device = corpus, rows, anchors, seed, device
        self.places, self.per_epoch = places, len(corpus) // rows
        self._flat = torch.from_numpy(corpus.flat.astype(np.int32)).to(device)
        self._epoch, self._order = -1, np.empty((0, rows), np.int64)

    def __call__(self, step: int) -> Batch:
        epoch, index = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._epoch_order(epoch)
        return self.assemble(self._order[index], np.random.default_rng([self.seed, 1, step]))

    def _epoch_order(self, epoch: int) -> np.ndarray:
        """Row numbers [batches, rows]: shuffled, sorted by length within chunks, batches shuffled again."""
        rng = np.random.default_rng([self.seed, 0, epoch])
        order = rng.permutation(len(self.corpus))[: self.per_epoch * self.rows]
        span = self.rows * CHUNK
        for begin in range(0, len(order), span):
            part = order[begin : begin + span]
            order[begin : begin + span] = part[np.argsort(self.corpus.length[part], kind="stable")]
        return rng.permutation(order.reshape(self.per_epoch, self.rows))

    def assemble(self, rows: np.ndarray, rng: np.random.Generator) -> Batch:
        """The given rows with random anchors, each followed by at least one token of the reply."""
        corpus = self.corpus
        length, anchors = corpus.length[rows], self._anchors(rows, rng)
        width = -(-int(length.max()) // PAD_TO) * PAD_TO
        lengths = torch.from_numpy(length).to(self.device)
        column = torch.arange(width, device=self.device)
        inside = column < lengths[:, None]  # [B, S]
        index = torch.from_numpy(corpus.start[rows]).to(self.device)[:, None] + column
        ids = torch.where(inside, self._flat[torch.where(inside, index, 0)], 0).long()
        return Batch(ids, lengths, torch.from_numpy(anchors).to(self.device))

    def _anchors(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Positions [rows, anchors]."""
        draws = rng.random((len(rows), self.anchors))
        if self.places is not None:
            own = [self.places[row] for row in rows]
            return np.stack([at[(draw * len(at)).astype(np.int64)] for at, draw in zip(own, draws, strict=True)])
        reply = self.corpus.reply[rows][:, None]
        return (reply + draws * (self.corpus.length[rows][:, None] - 1 - reply)).astype(np.int64)

    def in_order(self, limit: int) -> Iterator[Batch]:
        """At most `limit` batches, each row once, with fixed anchors: for held-out losses."""
        for step in range(min(limit, self.per_epoch)):
            rows = np.arange(step * self.rows, (step + 1) * self.rows)
            yield self.assemble(rows, np.random.default_rng([self.seed, 2, step]))
