"""E2, Preble's global scheduler, and its length-aware extension, on a radix tree of prompts."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar, Final

from lengthwise.policies import Job, parameter
from lengthwise.routers.base import Choice, EngineId, EngineInfo, EngineNumbers, Finished
from lengthwise.routers.tracking import LedgerRouter

_DEFAULT_OUTPUT: Final = 45.0  # tokens; Preble's, for a request without max_tokens
_SAMPLES: Final = 200  # per engine, of TPOT; per prefix, of answer lengths and TTFT


@dataclass(slots=True, eq=False)
class PrefixNode:
    """A node of the radix tree of prompts: consecutive blocks. Dictionaries are by the number of an engine.

    `context`: tokens from the root to its end.
    """

    blocks: tuple[int, ...]
    tokens: int
    context: int
    parent: PrefixNode | None
    children: dict[int, PrefixNode] = field(default_factory=dict)
    engines: set[int] = field(default_factory=set)
    """Engines that the prefix is assigned to."""
    used: dict[int, float] = field(default_factory=dict)
    """Engines that have it cached, and the time of the last use."""
    active: dict[int, int] = field(default_factory=dict)
    """Live requests with this prefix."""
    expected_output: dict[int, float] = field(default_factory=dict)
    """Their expected output tokens."""
    ttft: dict[int, deque[tuple[float, float]]] = field(default_factory=dict)
    """Finish times and TTFTs of the last requests."""
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    max_output: float = 0.0
    count: int = 0
    """Requests in the window; `hit_tokens` of their `prompt_tokens` were known."""
    hit_tokens: int = 0
    prompt_tokens: int = 0

    @property
    def large(self) -> bool:
        """Whether it is more than half of the context that ends with it."""
        return self.tokens > self.context - self.tokens

    @property
    def miss(self) -> float:
        """Share of prompt tokens over the window that were not known."""
        return 1.0 - self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 1.0

    @property
    def output(self) -> float:
        """Assumed length of an answer: the mean of finished ones, else the last request's max_tokens."""
        return sum(self.lengths) / len(self.lengths) if self.lengths else self.max_output

    def path(self) -> Iterator[PrefixNode]:
        """Iterate from here up, without the root."""
        node: PrefixNode | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def below(self) -> Iterator[PrefixNode]:
        """Iterate over all descendants."""
        found = list(self.children.values())
        while found:
            node = found.pop()
            yield node
            found += node.children.values()

    @property
    def important(self) -> PrefixNode:
        """The nearest large node from here up: the prefix that a request counts for."""
        return next(node for node in self.path() if node.large)

    def add(self, number: int, requests: int, tokens: float) -> None:
        """Add live requests and their expected output, here and above; drop sums of no requests."""
        for node in self.path():
            node.active[number] = node.active.get(number, 0) + requests
            node.expected_output[number] = node.expected_output.get(number, 0.0) + tokens
            if node.active[number] <= 0:
                del node.active[number], node.expected_output[number]

    def insert(
        self, blocks: Sequence[int], tokens: int, block_tokens: int
    ) -> tuple[PrefixNode, int, PrefixNode | None]:
        """Insert a prompt; return its last node, how many of its tokens were known, and the node split for it.

        For the root. The incomplete last block of a prompt has no hash: it belongs to the last node if that is new.
        """
        node, at, split = self, 0, None
        while at < len(blocks):
            child = node.children.get(blocks[at])
            if child is None:
                break
            same = _common(child.blocks, blocks, at)
            if same < len(child.blocks):
                split, child = child, _split(child, same, block_tokens)
            node, at = child, at + same
        known = min(node.context, tokens)
        if at < len(blocks) or node is self:
            rest = tuple(blocks[at:])
            size = max(1, len(rest) * block_tokens, tokens - node.context)
            node.children[rest[0] if rest else -1] = leaf = PrefixNode(rest, size, node.context + size, node)
            return leaf, known, split
        return node, known, split

    def prune(self) -> None:
        """Remove this node and its ancestors as far as they are unused, which Preble does not do."""
        node = self
        while node.parent is not None and not (node.children or node.used or node.active or node.count):
            key = node.blocks[0] if node.blocks else -1
            if node.parent.children.get(key) is node:
                del node.parent.children[key]
            node = node.parent


def _common(node: tuple[int, ...], blocks: Sequence[int], at: int) -> int:
    number = 0
    while number < len(node) and at + number < len(blocks) and node[number] == blocks[at + number]:
        number += 1
    return number


def _split(child: PrefixNode, at: int, block_tokens: int) -> PrefixNode:
    """Insert a node for the first `at` blocks above `child`, with a copy of its state, and return it."""
    assert child.parent is not None  # noqa: S101  # the root has no blocks
    head = PrefixNode(
        child.blocks[:at],
        at * block_tokens,
        child.context - child.tokens + at * block_tokens,
        child.parent,
        engines=set(child.engines),
        used=dict(child.used),
        active=dict(child.active),
        expected_output=dict(child.expected_output),
    )
    child.parent.children[child.blocks[0]] = head
    child.blocks, child.tokens, child.parent = child.blocks[at:], child.tokens - head.tokens, head
    head.children[child.blocks[0]] = child
    return head


@dataclass(eq=False)
class E2(LedgerRouter):
    """Exploit a long prefix, else explore by cost (Preble's E2, after its public code).

    exploit if over half of the prompt is known: candidates = engines of the longest known prefix; else explore: all
    cost(g) = sum over prefixes n of the window that are assigned to g of
                  miss(n) * count(n) * prefill(n) / engines(n) + active(n, g) * output(n) * TPOT(g)
              + sum over the LRU victims v to evict, if large, of miss(v) * count(v) * prefill(v)      (seconds)
    Among candidates the least cost; an exploring request goes to an engine with a hit ratio >= 0.7 over 30 s, if any.
    After 50 requests per engine, if the highest load is >= 1.5 times the lowest: move the cheapest large prefixes
    there while the source stays the heavier, or assign its only one to both if its TTFT doubled from one half of the
    window to the other; then the next heaviest.
    window: 180 s. output: mean of finished answers (of more than one token), else max_tokens, else 45. TPOT: median of
    the last 200. prefill by the engine's speed. Without blocks: always explores. Uses no prediction.
    finished = 0 assumes max_tokens always, eviction = 0 leaves out the term of the victims: both as in the public code
    and experiments of length-aware Preble.
    """

    kind = "e2"
    by_length: ClassVar[bool] = False

    window: float = parameter(180.0, minimum=1.0)
    imbalance: float = parameter(1.5, minimum=1.0)
    hits: float = parameter(0.7, minimum=0.0, maximum=1.0)
    settle: float = parameter(50.0, minimum=0.0)
    finished: float = parameter(1.0, minimum=0.0, maximum=1.0)
    eviction: float = parameter(1.0, minimum=0.0, maximum=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._root = PrefixNode((), 0, 0, None)
        self._window: deque[tuple[float, PrefixNode, int, int]] = deque()
        self._counted: dict[PrefixNode, None] = {}
        self._held: dict[int, dict[PrefixNode, None]] = defaultdict(dict)
        self._held_tokens: dict[int, int] = defaultdict(int)
        self._tpot: dict[int, deque[float]] = {}
        self._tpot_medians: dict[int, float] = {}  # cached medians
        self._hits: dict[int, deque[tuple[float, int, int]]] = defaultdict(deque)
        self._jobs: dict[str, tuple[PrefixNode, int, float, float]] = {}
        self._at: tuple[PrefixNode, int] = (self._root, 0)

    def engine_up(self, engine: EngineInfo) -> None:
        """Add an engine or update its description."""
        super().engine_up(engine)
        self._tpot.setdefault(self.numbers[engine.id], deque([engine.speed.step_s], maxlen=_SAMPLES))

    def engine_down(self, engine: EngineId) -> None:
        """Remove an engine from every prefix."""
        number = self.numbers.get(engine)
        super().engine_down(engine)
        if number is None:
            return
        for job in [job for job, (_, there, _, _) in self._jobs.items() if there == number]:
            self._remove(job)
        for node in list(self._root.below()):
            node.engines.discard(number)
            node.used.pop(number, None)
            node.ttft.pop(number, None)
            node.prune()
        for by_number in (self._held, self._hits, self._tpot, self._held_tokens, self._tpot_medians):
            by_number.pop(number, None)

    def pick(self, job: Job, now: float, numbers: EngineNumbers) -> Choice:
        """Exploit a known prefix or explore."""
        self._expire(now)
        engine = next(engine for engine in self.engines if engine is not None)
        blocks = [int(block) for block in job.blocks]
        leaf, known, split = self._root.insert(blocks, job.prompt_tokens, engine.block_tokens)
        if split is not None:
            self._move_counts_to_head(split)
        self._at = leaf, known
        exploit = known > job.prompt_tokens - known
        among = numbers.tolist()
        if exploit:
            holders = next((node.engines for node in leaf.path() if node.engines.intersection(among)), set(among))
            among = sorted(holders.intersection(among))
        elif (decoding := self._decoding(among, now)) is not None:
            return decoding, {"hit_ratio": self._hit_ratio(decoding, now)}
        loads = self._loads(among) if len(among) > 1 else {}
        costs = {number: loads.get(number, 0.0) + self._eviction(number, leaf) for number in among} if loads else {}
        best = min(among, key=lambda number: costs.get(number, 0.0))
        return best, {"exploit": float(exploit), "cost": costs.get(best, 0.0)}

    def send(self, job: Job, number: int, now: float) -> None:
        """Count the job for its prefix, assign that to the engine, evict there if needed, and rebalance."""
        super().send(job, number, now)
        self._remove(job.id)
        leaf, known = self._at
        tokens = job.expected
        important = leaf.important
        important.count += 1
        important.hit_tokens += known
        important.prompt_tokens += job.prompt_tokens
        important.max_output = _DEFAULT_OUTPUT if job.max_tokens is None else job.max_tokens
        self._counted[important] = None
        self._window.append((now, important, known, job.prompt_tokens))
        found = sum(node.tokens for node in leaf.path() if number in node.used)
        self._hits[number].append((now, min(found, job.prompt_tokens), job.prompt_tokens))
        leaf.add(number, 1, tokens)
        for node in leaf.path():
            node.engines.add(number)
            node.used[number] = now
            if node not in self._held[number]:
                self._held[number][node] = None
                self._held_tokens[number] += node.tokens
        self._jobs[job.id] = leaf, number, now, tokens
        for victim in self._victims(number, 0):
            self._drop(victim, number)
        self._rebalance(now)

    def finish(self, event: Finished, number: int) -> None:
        """Record length and speed, and remove the job."""
        super().finish(event, number)
        if event.job not in self._jobs or self._jobs[event.job][1] != number:
            return
        leaf, _, sent, _ = self._jobs[event.job]
        important = leaf.important
        ttft = 0.0 if event.ttft_s is None else event.ttft_s
        if event.ttft_s is not None:
            important.ttft.setdefault(number, deque(maxlen=_SAMPLES)).append((event.now, ttft))
        if event.generated > 1:
            if self.finished:
                important.lengths.append(event.generated)
            self._tpot[number].append(max(0.0, event.now - sent - ttft) / (event.generated - 1))
            self._tpot_medians.pop(number, None)
        self._remove(event.job)

    def _move_counts_to_head(self, tail: PrefixNode) -> None:
        """After a split, move the counts to the first part if the rest is no longer large."""
        head = tail.parent
        for number in tail.used:
            if head is not None:
                self._held[number][head] = None
        if head is None or tail.large or not tail.count:
            return
        head.count, head.hit_tokens, head.prompt_tokens = tail.count, tail.hit_tokens, tail.prompt_tokens
        head.max_output, head.lengths, head.ttft = tail.max_output, tail.lengths.copy(), tail.ttft
        tail.count = tail.hit_tokens = tail.prompt_tokens = 0
        tail.ttft = {}
        self._counted = {head if node is tail else node: None for node in self._counted}
        self._window = deque((when, head if node is tail else node, hit, of) for when, node, hit, of in self._window)

    def _loads(self, numbers: Iterable[int], least: int = 1) -> dict[int, float]:
        """Return the load of each engine from the prefixes of the window: the scan that makes E2 slow."""
        loads = dict.fromkeys(numbers, 0.0)
        tpot = {number: self._median_tpot(number) for number in loads}
        for node in self._counted:
            if node.count >= least:
                for number in node.engines:
                    if number in loads:
                        loads[number] += self._cost(node, number, tpot[number])
        return loads

    def _median_tpot(self, number: int) -> float:
        if number not in self._tpot_medians:
            self._tpot_medians[number] = median(self._tpot[number])
        return self._tpot_medians[number]

    def _cost(self, node: PrefixNode, number: int, tpot: float) -> float:
        decode = node.expected_output.get(number, 0.0) if self.by_length else node.active.get(number, 0) * node.output
        return node.miss * node.count * self._prefill(node, number) / len(node.engines) + decode * tpot

    def _prefill(self, node: PrefixNode, number: int) -> float:
        engine = self.engines[number]
        return 0.0 if engine is None else engine.speed.prefill_s(node.context, node.context - node.tokens)

    def _eviction(self, number: int, leaf: PrefixNode) -> float:
        """Return the cost of the victims that a new prompt would evict."""
        if not self.eviction:
            return 0.0
        new = sum(node.tokens for node in leaf.path() if number not in node.used)
        return sum(
            node.miss * node.count * self._prefill(node, number) for node in self._victims(number, new) if node.large
        )

    def _victims(self, number: int, new: int) -> list[PrefixNode]:
        """Return the least recently used nodes to evict to free `new` tokens, longest context first on a tie.

        Nodes used by live requests are never evicted.
        """
        engine = self.engines[number]
        excess = new + self._held_tokens[number] - (engine.kv_tokens if engine is not None else 0)
        victims = []
        if excess > 0:
            idle = [node for node in self._held[number] if not node.active.get(number)]
            for node in sorted(idle, key=lambda node: (node.used[number], -node.context)):
                if excess <= 0:
                    break
                victims.append(node)
                excess -= node.tokens
        return victims

    def _drop(self, node: PrefixNode, number: int) -> None:
        node.used.pop(number, None)
        node.engines.discard(number)
        del self._held[number][node]
        self._held_tokens[number] -= node.tokens
        node.prune()

    def _hit_ratio(self, number: int, now: float) -> float:
        recent = self._hits[number]
        while recent and recent[0][0] < now - self.window / 6.0:
            recent.popleft()
        return sum(hit for _, hit, _ in recent) / max(1, sum(prompt for _, _, prompt in recent))

    def _decoding(self, numbers: list[int], now: float) -> int | None:
        """Return the engine with the highest hit ratio, if it is high: it mostly decodes and can take prefill."""
        ratios = {number: self._hit_ratio(number, now) for number in numbers}
        best = max(numbers, key=lambda number: ratios[number])
        return best if ratios[best] >= self.hits else None

    def _rebalance(self, now: float) -> None:
        """Move load from the heaviest engine to the lightest, then from the next heaviest, while unbalanced."""
        if self._choices < self.settle * len(self.live):
            return
        loads = self._loads(self.live.tolist(), least=2)
        *heaviest, light = sorted(loads, key=lambda number: -loads[number])
        for heavy in heaviest:
            if loads[heavy] <= 0.0 or loads[heavy] < self.imbalance * loads[light]:
                return
            self._relieve(heavy, light, loads, now)

    def _relieve(self, heavy: int, light: int, loads: dict[int, float], now: float) -> None:
        tpot = self._median_tpot(heavy)
        nodes = [node for node in self._counted if heavy in node.engines and node.large and node.count > 1]
        if len(nodes) == 1:
            if light not in nodes[0].engines and self._slower(nodes[0], heavy, now):
                half = self._cost(nodes[0], heavy, tpot) / 2
                loads[heavy], loads[light] = loads[heavy] - half, loads[light] + half
                nodes[0].engines.add(light)
                nodes[0].ttft.pop(heavy, None)
            return
        for cost, _, node in sorted((self._cost(node, heavy, tpot), number, node) for number, node in enumerate(nodes)):
            if loads[heavy] - cost < loads[light] + cost:
                return
            loads[heavy], loads[light] = loads[heavy] - cost, loads[light] + cost
            for moved in (node, *node.below()):
                moved.engines = {light}
            if loads[heavy] < self.imbalance * loads[light]:
                return

    def _slower(self, node: PrefixNode, number: int, now: float) -> bool:
        """Return whether the TTFT of a prefix doubled from one half of the window to the other."""
        age = [(now - when, ttft) for when, ttft in node.ttft.get(number, ()) if when >= now - self.window]
        first = [ttft for ago, ttft in age if ago > self.window / 2]
        second = [ttft for ago, ttft in age if ago <= self.window / 2]
        return bool(first and second) and sum(second) / len(second) >= 2 * sum(first) / len(first)

    def _remove(self, job: str) -> None:
        leaf, number, _, tokens = self._jobs.pop(job, (None, 0, 0.0, 0.0))
        if leaf is not None:
            leaf.add(number, -1, -tokens)
            leaf.prune()

    def _expire(self, now: float) -> None:
        """Drop what is older than the window, and jobs that the ledger dropped."""
        if len(self._jobs) > len(self.ledger):
            for job in [job for job in self._jobs if job not in self.ledger]:
                self._remove(job)
        while self._window and self._window[0][0] < now - self.window:
            _, node, hit, prompt = self._window.popleft()
            node.count -= 1
            node.hit_tokens -= hit
            node.prompt_tokens -= prompt
            if node.count == 0:
                del self._counted[node]
                node.engines.clear()
                node.ttft.clear()
                node.prune()


class E2Length(E2):
    """E2 with the expected length of each request in the load: true lengths from an oracle, or predicted ones.

    active(n, g) * output(n) becomes the sum over active requests of their expected lengths      (tokens)
    Otherwise as e2. Without a prediction: the mean of the wide prior.
    """

    kind = "e2_length"
    uses_predictions = True
    by_length = True
