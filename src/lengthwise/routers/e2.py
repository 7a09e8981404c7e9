"""E2, Preble's global scheduler, and its length-aware extension."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from statistics import median
from typing import ClassVar, Final

from lengthwise.policies import Job
from lengthwise.routers.base import Parameter, Picked, Routing, Slots
from lengthwise.routers.contract import EngineId, EngineInfo, Finished
from lengthwise.routers.e2_tree import Node, Tree

_ASSUMED: Final = 45.0  # Preble's, where a request allows no maximum
_SAMPLES: Final = 200


class E2(Routing):
    """Exploit a long prefix, else explore by cost (Preble's E2, read off its public code).

    exploit if more of the prompt is known than not: candidates = engines of the longest known prefix; else explore: all
    cost(g) = sum over prefixes n of the window that are allotted to g of
                  miss(n) * count(n) * prefill(n) / engines(n) + active(n, g) * output(n) * TPOT(g)
              + sum over the LRU victims v that must go, if large, of miss(v) * count(v) * prefill(v)      (seconds)
    Of several candidates the least cost; an exploring request goes to an engine whose hit ratio over 30 s is >= 0.7.
    Then, once there were 50 requests per engine, if the heaviest load is >= 1.5 times the lightest: move its cheapest
    large prefixes there while that leaves it the heavier, or allot its only one to both if its TTFT doubled from one
    half of the window to the other; so on with the next heaviest.
    window: 180 s. output: mean of finished answers (of one token: not counted), else max_tokens, else 45. TPOT: median
    of the last 200. prefill by the engine's speed. Without blocks: explores always. Looks at no prediction.
    """

    called = "e2"
    parameters: ClassVar = {
        "window": Parameter(180.0, 1.0),
        "imbalance": Parameter(1.5, 1.0),
        "hits": Parameter(0.7, 0.0, 1.0),
        "settle": Parameter(50.0),
    }
    by_length: ClassVar[bool] = False

    def __init__(self, **given: float) -> None:
        super().__init__(**given)
        self._tree = Tree()
        self._window: deque[tuple[float, Node, int, int]] = deque()
        self._counted: dict[Node, None] = {}
        self._held: dict[int, dict[Node, None]] = defaultdict(dict)
        self._held_tokens: dict[int, int] = defaultdict(int)
        self._tpot: dict[int, deque[float]] = {}
        self._usual_tpot: dict[int, float] = {}  # their medians, as far as they are known
        self._hits: dict[int, deque[tuple[float, int, int]]] = defaultdict(deque)
        self._jobs: dict[str, tuple[Node, int, float, float]] = {}
        self._at: tuple[Node, int] = (self._tree.root, 0)

    def engine_up(self, engine: EngineInfo) -> None:
        """Learn of an engine."""
        super().engine_up(engine)
        self._tpot.setdefault(self.slots[engine.id], deque([engine.speed.step_s], maxlen=_SAMPLES))

    def engine_down(self, engine: EngineId) -> None:
        """Take an engine off everything."""
        slot = self.slots.get(engine)
        super().engine_down(engine)
        if slot is None:
            return
        for job in [job for job, (_, there, _, _) in self._jobs.items() if there == slot]:
            self._leave(job)
        for node in list(self._tree.root.below()):
            node.engines.discard(slot)
            node.used.pop(slot, None)
            node.ttft.pop(slot, None)
            self._tree.cut(node)
        for about in (self._held, self._hits, self._tpot):
            about.pop(slot, None)
        for number in (self._held_tokens, self._usual_tpot):
            number.pop(slot, None)

    def pick(self, job: Job, now: float, slots: Slots) -> Picked:
        """Exploit or explore."""
        self._forget(now)
        engine = next(engine for engine in self.engines if engine is not None)
        blocks = [int(block) for block in job.blocks]
        leaf, known, split = self._tree.insert(blocks, job.prompt_tokens, engine.block_tokens)
        if split is not None:
            self._passed_up(split)
        self._at = leaf, known
        exploit = known > job.prompt_tokens - known
        among = slots.tolist()
        if exploit:
            holders = next((node.engines for node in leaf.path() if node.engines.intersection(among)), set(among))
            among = sorted(holders.intersection(among))
        elif (idle := self._decoding(among, now)) is not None:
            return idle, {"hit_ratio": self._hit_ratio(idle, now)}
        loads = self._loads(among) if len(among) > 1 else {}
        costs = {slot: loads.get(slot, 0.0) + self._eviction(slot, leaf) for slot in among} if loads else {}
        best = min(among, key=lambda slot: costs.get(slot, 0.0))
        return best, {"exploit": float(exploit), "cost": costs.get(best, 0.0)}

    def send(self, job: Job, slot: int, now: float) -> None:
        """Count the job under its prefix, allot that to the engine, make room there, and balance."""
        super().send(job, slot, now)
        self._leave(job.id)
        leaf, known = self._at
        tokens = job.expected
        important = leaf.important
        important.count += 1
        important.hit_tokens += known
        important.prompt_tokens += job.prompt_tokens
        important.assumed = _ASSUMED if job.max_tokens is None else job.max_tokens
        self._counted[important] = None
        self._window.append((now, important, known, job.prompt_tokens))
        found = sum(node.tokens for node in leaf.path() if slot in node.used)
        self._hits[slot].append((now, min(found, job.prompt_tokens), job.prompt_tokens))
        leaf.add(slot, 1, tokens)
        for node in leaf.path():
            node.engines.add(slot)
            node.used[slot] = now
            if node not in self._held[slot]:
                self._held[slot][node] = None
                self._held_tokens[slot] += node.tokens
        self._jobs[job.id] = leaf, slot, now, tokens
        for victim in self._victims(slot, 0):
            self._drop(victim, slot)
        self._rebalance(now)

    def finish(self, event: Finished, slot: int) -> None:
        """Learn length and speed, and take the job off."""
        super().finish(event, slot)
        if event.job not in self._jobs or self._jobs[event.job][1] != slot:
            return
        leaf, _, sent, _ = self._jobs[event.job]
        important = leaf.important
        ttft = 0.0 if event.ttft_s is None else event.ttft_s
        if event.ttft_s is not None:
            important.timed(slot, event.now, ttft)
        if event.generated > 1:
            important.lengths.append(event.generated)
            self._tpot[slot].append(max(0.0, event.now - sent - ttft) / (event.generated - 1))
            self._usual_tpot.pop(slot, None)
        self._leave(event.job)

    def _passed_up(self, tail: Node) -> None:
        """Of a prefix that was split, the first part is counted instead, if the rest is no longer the larger part."""
        head = tail.parent
        for slot in tail.used:
            if head is not None:
                self._held[slot][head] = None
        if head is None or tail.large or not tail.count:
            return
        head.count, head.hit_tokens, head.prompt_tokens = tail.count, tail.hit_tokens, tail.prompt_tokens
        head.assumed, head.lengths, head.ttft = tail.assumed, tail.lengths.copy(), tail.ttft
        tail.count = tail.hit_tokens = tail.prompt_tokens = 0
        tail.ttft = {}
        self._counted = {head if node is tail else node: None for node in self._counted}
        self._window = deque((when, head if node is tail else node, hit, of) for when, node, hit, of in self._window)

    def _loads(self, slots: Iterable[int], least: int = 1) -> dict[int, float]:
        """What the prefixes of the window mean to each engine: the scan that makes E2 slow."""
        loads = dict.fromkeys(slots, 0.0)
        tpot = {slot: self._median_tpot(slot) for slot in loads}
        for node in self._counted:
            if node.count >= least:
                for slot in node.engines:
                    if slot in loads:
                        loads[slot] += self._cost(node, slot, tpot[slot])
        return loads

    def _median_tpot(self, slot: int) -> float:
        if slot not in self._usual_tpot:
            self._usual_tpot[slot] = median(self._tpot[slot])
        return self._usual_tpot[slot]

    def _cost(self, node: Node, slot: int, tpot: float) -> float:
        decode = node.to_come.get(slot, 0.0) if self.by_length else node.active.get(slot, 0) * node.output
        return node.miss * node.count * self._prefill(node, slot) / len(node.engines) + decode * tpot

    def _prefill(self, node: Node, slot: int) -> float:
        engine = self.engines[slot]
        return 0.0 if engine is None else engine.speed.prefill_s(node.context, node.context - node.tokens)

    def _eviction(self, slot: int, leaf: Node) -> float:
        """What would be lost by the victims that a new prompt needs gone."""
        new = sum(node.tokens for node in leaf.path() if slot not in node.used)
        return sum(
            node.miss * node.count * self._prefill(node, slot) for node in self._victims(slot, new) if node.large
        )

    def _victims(self, slot: int, new: int) -> list[Node]:
        """The least recently used that must go for so many tokens more; nobody's who is live, leaves first."""
        engine = self.engines[slot]
        excess = new + self._held_tokens[slot] - (engine.kv_tokens if engine is not None else 0)
        victims = []
        if excess > 0:
            idle = [node for node in self._held[slot] if not node.active.get(slot)]
            for node in sorted(idle, key=lambda node: (node.used[slot], -node.context)):
                if excess <= 0:
                    break
                victims.append(node)
                excess -= node.tokens
        return victims

    def _drop(self, node: Node, slot: int) -> None:
        node.used.pop(slot, None)
        node.engines.discard(slot)
        del self._held[slot][node]
        self._held_tokens[slot] -= node.tokens
        self._tree.cut(node)

    def _hit_ratio(self, slot: int, now: float) -> float:
        recent = self._hits[slot]
        while recent and recent[0][0] < now - self.given["window"] / 6.0:
            recent.popleft()
        return sum(hit for _, hit, _ in recent) / max(1, sum(prompt for _, _, prompt in recent))

    def _decoding(self, slots: list[int], now: float) -> int | None:
        """The engine that computes the least of its prompts, if that is little: it has room for prefill."""
        ratios = {slot: self._hit_ratio(slot, now) for slot in slots}
        best = max(slots, key=lambda slot: ratios[slot])
        return best if ratios[best] >= self.given["hits"] else None

    def _rebalance(self, now: float) -> None:
        """The heaviest engine gives to the lightest, then the next heaviest, as long as they are out of balance."""
        if self._chosen < self.given["settle"] * len(self.live):
            return
        loads = self._loads(self.live.tolist(), least=2)
        *heaviest, light = sorted(loads, key=lambda slot: -loads[slot])
        for heavy in heaviest:
            if loads[heavy] <= 0.0 or loads[heavy] < self.given["imbalance"] * loads[light]:
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
            if loads[heavy] < self.given["imbalance"] * loads[light]:
                return

    def _slower(self, node: Node, slot: int, now: float) -> bool:
        """Whether the TTFT of a prefix doubled from one half of the window to the other."""
        age = [(now - when, ttft) for when, ttft in node.ttft.get(slot, ()) if when >= now - self.given["window"]]
        first = [ttft for ago, ttft in age if ago > self.given["window"] / 2]
        second = [ttft for ago, ttft in age if ago <= self.given["window"] / 2]
        return bool(first and second) and sum(second) / len(second) >= 2 * sum(first) / len(first)

    def _leave(self, job: str) -> None:
        leaf, slot, _, tokens = self._jobs.pop(job, (None, 0, 0.0, 0.0))
        if leaf is not None:
            leaf.add(slot, -1, -tokens)
            self._tree.cut(leaf)

    def _forget(self, now: float) -> None:
        """Let go what is older than the window, and jobs that the ledger has forgotten."""
        if len(self._jobs) > len(self.ledger):
            for job in [job for job in self._jobs if job not in self.ledger]:
                self._leave(job)
        while self._window and self._window[0][0] < now - self.given["window"]:
            _, node, hit, prompt = self._window.popleft()
            node.count -= 1
            node.hit_tokens -= hit
            node.prompt_tokens -= prompt
            if node.count == 0:
                del self._counted[node]
                node.engines.clear()
                node.ttft.clear()
                self._tree.cut(node)


class E2Length(E2):
    """E2 with each request's own length in its load: true lengths from an oracle, or predicted ones.

    active(n, g) * output(n) becomes the sum over active requests of their expected lengths      (tokens)
    All else as in e2. Without a prediction: the wide prior's mean.
    """

    called = "e2_length"
    uses_predictions = True
    by_length = True
