"""Preble's global prefix tree: prompts by their blocks, with what each engine has to do with each prefix."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

_LENGTHS: Final = 200  # finished answers that a prefix remembers


@dataclass(slots=True, eq=False)
class Node:
    """A run of blocks behind its parent's. `context`: tokens from the root to its end; by engine slot the others."""

    blocks: tuple[int, ...]
    tokens: int
    context: int
    parent: Node | None
    children: dict[int, Node] = field(default_factory=dict)
    engines: set[int] = field(default_factory=set)
    """That it is allotted to."""
    used: dict[int, float] = field(default_factory=dict)
    """Engines that hold it, and when each last did something with it."""
    active: dict[int, int] = field(default_factory=dict)
    """Live requests that pass through it."""
    to_come: dict[int, float] = field(default_factory=dict)
    """Expected tokens of their answers."""
    ttft: dict[int, deque[tuple[float, float]]] = field(default_factory=dict)
    """When the last requests finished, and their times to the first token."""
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=_LENGTHS))
    assumed: float = 0.0
    count: int = 0
    """Requests in the window, and tokens of their prompts that were found and that there were."""
    hit_tokens: int = 0
    prompt_tokens: int = 0

    @property
    def large(self) -> bool:
        """Whether it is more than half of the prompts that end with it."""
        return self.tokens > self.context - self.tokens

    @property
    def miss(self) -> float:
        """Share of prompt tokens that were not found, over the window."""
        return 1.0 - self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 1.0

    @property
    def output(self) -> float:
        """Assumed length of an answer: the mean of those that finished, else what the last request allowed."""
        return sum(self.lengths) / len(self.lengths) if self.lengths else self.assumed

    def path(self) -> Iterator[Node]:
        """From here up, without the root."""
        node: Node | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def below(self) -> Iterator[Node]:
        """All that goes on from here."""
        found = list(self.children.values())
        while found:
            node = found.pop()
            yield node
            found += node.children.values()

    @property
    def important(self) -> Node:
        """The nearest large node from here up: the prefix a request is counted under."""
        return next(node for node in self.path() if node.large)

    def timed(self, slot: int, when: float, ttft: float) -> None:
        """Remember a time to the first token."""
        self.ttft.setdefault(slot, deque(maxlen=_LENGTHS)).append((when, ttft))

    def add(self, slot: int, requests: int, tokens: float) -> None:
        """Count live requests, here and above; at 0 the sums are gone."""
        for node in self.path():
            node.active[slot] = node.active.get(slot, 0) + requests
            node.to_come[slot] = node.to_come.get(slot, 0.0) + tokens
            if node.active[slot] <= 0:
                del node.active[slot], node.to_come[slot]


class Tree:
    """The radix tree. Nodes that nobody needs any more are cut off, which Preble does not do."""

    def __init__(self) -> None:
        self.root = Node((), 0, 0, None)

    def insert(self, blocks: Sequence[int], tokens: int, block_tokens: int) -> tuple[Node, int, Node | None]:
        """The node at the end of a prompt, made if need be, how many tokens of it were known, and who was split for it.

        A prompt's rest that is no full block has no name: it belongs to the last node if that is new.
        """
        node, at, split = self.root, 0, None
        while at < len(blocks):
            child = node.children.get(blocks[at])
            if child is None:
                break
            same = _same(child.blocks, blocks, at)
            if same < len(child.blocks):
                split, child = child, _split(child, same, block_tokens)
            node, at = child, at + same
        known = min(node.context, tokens)
        if at < len(blocks) or node is self.root:
            rest = tuple(blocks[at:])
            own = max(1, len(rest) * block_tokens, tokens - node.context)
            leaf = Node(rest, own, node.context + own, node)
            node.children[rest[0] if rest else -1] = leaf
            return leaf, known, split
        return node, known, split

    def cut(self, node: Node) -> None:
        """Cut a node off, and those above it, as far as nobody needs them."""
        while node.parent is not None and not (node.children or node.used or node.active or node.count):
            key = node.blocks[0] if node.blocks else -1
            if node.parent.children.get(key) is node:
                del node.parent.children[key]
            node = node.parent


def _same(own: tuple[int, ...], blocks: Sequence[int], at: int) -> int:
    number = 0
    while number < len(own) and at + number < len(blocks) and own[number] == blocks[at + number]:
        number += 1
    return number


def _split(child: Node, at: int, block_tokens: int) -> Node:
    """A new node for the first blocks of a node, above it, with all that is known of it."""
    assert child.parent is not None  # noqa: S101  # the root has no blocks to be split
    head = Node(
        child.blocks[:at],
        at * block_tokens,
        child.context - child.tokens + at * block_tokens,
        child.parent,
        engines=set(child.engines),
        used=dict(child.used),
        active=dict(child.active),
        to_come=dict(child.to_come),
    )
    child.parent.children[child.blocks[0]] = head
    child.blocks, child.tokens, child.parent = child.blocks[at:], child.tokens - head.tokens, head
    head.children[child.blocks[0]] = child
    return head
