"""Drafts drawn by chance, and the two rules that keep the text the target's own all the same.

Everywhere else in this package a draft is the drafter's best guess. Here its tokens are drawn from the drafter's
law, to see what that costs or gains. A chain is then judged by the ratio of the two laws: accept token x with
probability min(1, p(x) / q(x)), else draw from what p has beyond q (speculative sampling: arXiv 2211.17192,
Algorithm 1; arXiv 2302.01318). A tree is judged as every other one, by match, which is right for any tree that was
grown before the target's draws. This file knows no methods by name, keeps no text and measures no stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .decode import Settings
from .drafter import ContextCache, Draft, Drafter
from .errors import InputError
from .scoring import Children, Scorer
from .target import Context, Message, Target
from .tree import DraftTree
from .verify import Draw, Sampling, tree_inputs, walk

Choose = Callable[[Tensor], int]  # probabilities -> the index that was drawn


@dataclass(frozen=True)
class Drafted:
    """A draft and how it came about. `laws` [N, V]: what each node of a chain was drawn from; None if it was not."""

    tree: DraftTree
    laws: Tensor | None = None


def dice(generator: torch.Generator) -> Choose:
    """Real draws, in double precision: an index with its probability."""
    return lambda law: int(torch.multinomial(law.double().cpu(), 1, generator=generator))


def drawn_chain(scorer: Scorer, anchor: int, vocabulary: int, choose: Choose) -> Drafted:
    """A chain of the scorer's horizon, each token drawn from the scorer's law after those before it.

    The scorer should hand out every child it knows (no child cap): the law is normalised over what it hands out.
    """
    tokens, scores, laws, state = [anchor], [0.0], [], scorer.root()
    for depth in range(1, scorer.horizon + 1):
        children = scorer.children(depth, state)
        ids, log_probs = children.tokens[0], children.log_probs[0].double()
        law = log_probs.new_zeros(vocabulary).index_copy_(0, ids, log_probs.softmax(-1))
        token = choose(law)
        tokens.append(token)
        scores.append(scores[-1] + float(law[token].log()))
        laws.append(law)
        state = scorer.advance(state, torch.tensor([token], device=state.device))
    tree = DraftTree.from_lists(tokens, list(range(-1, len(tokens) - 1)), list(range(len(tokens))), scores)
    return Drafted(tree, torch.stack(laws) if laws else None)


class DrawnScorer:
    """Another scorer whose children are drawn from its law, each at most once, and handed out best first.

    `heap` and `frontier` then grow the best tree of those drawn. Ask each parent once: the next answer is another.
    """

    def __init__(self, inner: Scorer, child_cap: int, generator: torch.Generator) -> None:
        self.inner, self.child_cap, self.generator = inner, child_cap, generator
        self.horizon = inner.horizon

    def root(self) -> Tensor:
        return self.inner.root()

    def children(self, depth: int, states: Tensor) -> Children:
        found = self.inner.children(depth, states)  # [W, M]
        law = found.log_probs.double().exp().cpu()
        drawn = torch.multinomial(law, min(self.child_cap, law.shape[1]), generator=self.generator)
        best_first = drawn.sort(dim=-1).values.to(found.tokens.device)  # as the inner scorer had them
        return Children(found.tokens.gather(-1, best_first), found.log_probs.gather(-1, best_first))

    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        return self.inner.advance(states, tokens)


# --- Judging --------------------------------------------------------------------------------------------------


def judge_by_match(logits: Tensor, drafted: Drafted, sampling: Sampling, choose: Choose) -> Draw:
    """The target's own draw at each visited node; logits [N+1, V]. For any tree that doesn't depend on the draws."""
    return lambda node: choose(sampling.probabilities(logits[node].double()))


def judge_by_ratio(logits: Tensor, drafted: Drafted, sampling: Sampling, choose: Choose) -> Draw:
    """For a chain drawn from its `laws`: the drafted token, or one from the rest of the target's law.

    What it returns has the target's law p, whatever the law q of the draft: min(p, q) comes by acceptance, and
    p - min(p, q) by the rest. Raises InputError for a draft without laws.
    """
    laws, tokens = drafted.laws, drafted.tree.tokens.tolist()
    if laws is None and len(tokens) > 1:
        raise InputError("a draft that was not drawn can't be judged by a ratio of laws: judge it by match")

    def draw(node: int) -> int:
        p = sampling.probabilities(logits[node].double())
        if laws is None or node == len(laws):  # behind the last drafted token
            return choose(p)
        q, token = laws[node], tokens[node + 1]
        kept = min(1.0, float(p[token] / q[token]))
        if choose(p.new_tensor([kept, 1.0 - kept])) == 0:
            return token
        return choose((p - q).clamp(min=0) / (p - q).clamp(min=0).sum())

    return draw


# --- Decoding -------------------------------------------------------------------------------------------------

Grow = Callable[[Draft, int, torch.Generator], Drafted]  # from a draft and its anchor
Judge = Callable[[Tensor, Drafted, Sampling, Choose], Draw]


@dataclass(frozen=True)
class Drawn:
    """What decoding gave, over all turns: new tokens (the first of each turn comes from prefill), and its rounds."""

    token_ids: list[int]
    tokens: int  # that rounds emitted
    rounds: int
    seconds: float  # without prefill


def decode_drawn(
    turns: Sequence[str], target: Target, drafter: Drafter, settings: Settings, grow: Grow, judge: Judge
) -> Drawn:
    """The round loop of `decode` with any draft and rule: a few user turns answered at a temperature above 0.

    Of `settings` count sampling, slots, max_new_tokens and seed. Raises InputError at temperature 0.
    """
    if settings.sampling.greedy:
        raise InputError("drafts are drawn at a temperature above 0: give one")
    generator = torch.Generator().manual_seed(settings.seed)  # one for all: draws are never used twice
    messages: list[Message] = []
    replies: list[Drawn] = []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        replies.append(_reply(target.encode(messages), target, drafter, settings, grow, judge, generator))
        messages.append({"role": "assistant", "content": target.decode(replies[-1].token_ids)})
    return Drawn(
        token_ids=[token for reply in replies for token in reply.token_ids],
        tokens=sum(reply.tokens for reply in replies),
        rounds=sum(reply.rounds for reply in replies),
        seconds=sum(reply.seconds for reply in replies),
    )


@torch.inference_mode()
def _reply(
    ids: list[int],
    target: Target,
    drafter: Drafter,
    settings: Settings,
    grow: Grow,
    judge: Judge,
    generator: torch.Generator,
) -> Drawn:
    context, cache, layers, choose = Context(), ContextCache(), drafter.config.target_layer_ids, dice(generator)
    limit = min(settings.max_new_tokens, target.max_positions - len(ids) + 1)
    read = target.prefill(context, ids, layers)
    features, rounds = read.features, 0
    tokens = [choose(settings.sampling.probabilities(read.logits[0].double()))][:limit]
    began = time.perf_counter()
    while 0 < len(tokens) < limit and tokens[-1] not in target.eos_ids:
        room = limit - len(tokens) - 1  # deeper nodes could not be emitted
        drafted = Drafted(DraftTree.root_only(tokens[-1]))
        if room:
            slots = min(room, settings.slots or room)
            draft = drafter.draft(tokens[-1], features, cache, slots)
            drafted = grow(draft, tokens[-1], generator)
        tree = drafted.tree
        inputs = tree_inputs(tree, context.length, target.device)
        visible = inputs.visible if len(tree) else None
        verified = target.verify(context, inputs.tokens, inputs.positions, visible, layers)
        found = walk(tree, judge(verified.logits, drafted, settings.sampling, choose))
        kept = [0, *found.nodes]
        context.commit(kept)
        features, rounds = verified.features[kept], rounds + 1
        tokens += _until_the_end(found.tokens(tree), target)
    target.synchronize()
    return Drawn(tokens, max(len(tokens) - 1, 0), rounds, time.perf_counter() - began)


def _until_the_end(tokens: list[int], target: Target) -> list[int]:
    """Cut behind the first token that ends the text."""
    end = next((i for i, token in enumerate(tokens) if token in target.eos_ids), len(tokens) - 1)
    return tokens[: end + 1]
