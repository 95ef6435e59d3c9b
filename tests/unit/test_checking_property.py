"""Random small programs: the analyser against the transitive closure of their order, on every pair of accesses."""

import functools
import itertools
import json
import random

from checking_play import Program, found
from hypothesis import given, settings
from hypothesis import strategies as st

DIES, BYTES = 3, 6
ALL_BEFORE_ALL = ("barrier", "all_reduce", "all_to_all", "moe.dispatch")
OPS = (*ALL_BEFORE_ALL, "broadcast", "scatter", "reduce", "gather")


def program(seed, length):
    """Steps of a random program: (what, arguments), in an order in which it could run."""
    draw = random.Random(seed)
    rank = functools.partial(draw.randrange, DIES)

    def span():
        lo = draw.randrange(BYTES)
        return lo, min(BYTES, lo + draw.randint(1, 4))

    make = {
        "acc": lambda: (rank(), draw.randrange(3), span(), draw.random() < 0.6, draw.randrange(5)),
        "op": lambda: (
            draw.choice(OPS), draw.sample(range(DIES), draw.randint(2, DIES)), rank(),
            [(rank(), draw.random() < 0.5, span()) for _ in range(draw.randrange(3))], draw.random() < 0.3,
        ),
        "post": lambda: (rank(), draw.randrange(3)),
        "take": lambda: (rank(), draw.randrange(3), rank(), draw.randrange(3)),
        "fork": lambda: (rank(), draw.randrange(3)),
        "join": lambda: (rank(), draw.randint(1, 3)),
        "done": lambda: (rank(), draw.randint(1, 2)),
    }  # fmt: skip
    kinds = draw.choices(list(make), (40, 12, 12, 14, 14, 11, 6), k=length)
    return [(kind, *make[kind]()) for kind in kinds]


class Model:
    """A program, and its order as a graph: edges between points in time of its tasks."""

    def __init__(self, todo):
        self.program = Program(DIES)
        self.after = {}  # node -> nodes directly after it
        self.last = {(rank, 0): self.node() for rank in range(DIES)}  # of each task that goes on
        self.ended = {}  # the same of those that are over and not joined
        self.accesses = {}  # (line, "a", "r" or "w") -> (node, ranges, write, atomic)
        self.posts = [[] for _ in range(DIES)]  # of each die's flag
        self.tasks = 0
        for kind, *about in todo:
            getattr(self, kind)(*about)
        self.reach = {}

    def node(self, *before):
        new = len(self.after)
        self.after[new] = []
        for node in before:
            self.after[node].append(new)
        return new

    def step(self, who, *before):
        self.last[who] = self.node(self.last[who], *before)
        return self.last[who]

    def pick(self, rank, number):
        """One of a die's tasks."""
        mine = sorted(who for who in self.last if who[0] == rank)
        return mine[number % len(mine)]

    def acc(self, rank, task, span, write, atomic):
        who = self.pick(rank, task)
        node = self.step(who)
        line = self.program.acc(rank, *span, w=int(write), atomic=int(atomic == 0), t=who[1])
        self.accesses[line, "a"] = (node, [span], write, atomic == 0)

    def post(self, rank, task):
        who = self.pick(rank, task)
        node = self.step(who, *self.posts[rank][-1:])  # raised in turn
        if self.posts[rank]:  # so that values grow, the tasks of the die hand over
            self.program.take(rank, f"turn:{rank}", len(self.posts[rank]), t=who[1])
        self.posts[rank].append(node)
        self.program.post(rank, f"flag:{rank}", t=who[1], value=2 * len(self.posts[rank]))
        self.program.post(rank, f"turn:{rank}", t=who[1], value=len(self.posts[rank]))

    def take(self, rank, task, source, back):
        value = len(self.posts[source]) - back
        if value > 0:
            who = self.pick(rank, task)
            self.step(who, self.posts[source][value - 1])
            self.program.take(rank, f"flag:{source}", 2 * value - 1, t=who[1])

    def fork(self, rank, task):
        if sum(who[0] == rank for who in self.last) < 3:
            who = self.pick(rank, task)
            self.tasks += 1
            self.last[rank, self.tasks] = self.step(who)
            self.program.fork(rank, self.tasks, t=who[1])

    def join(self, rank, task):
        ends = {**self.ended, **self.last}
        mine = sorted(who for who in ends if who[0] == rank)
        if task < len(mine):
            child = mine[task]
            self.ended.pop(child, None)
            self.last.pop(child, None)
            self.step((rank, 0), ends[child])
            self.program.join(rank, child[1])

    def done(self, rank, task):
        mine = sorted(who for who in self.last if who[0] == rank)
        if task < len(mine):
            self.ended[mine[task]] = self.last.pop(mine[task])
            self.program.add(rank, "done", site=False, t=mine[task][1])

    def op(self, name, members, root, touched, beside):
        """An operation of all members at once; ``beside``: in a task of its own that nobody waits for yet."""
        root = sorted(members)[root % len(members)]
        rooted = name not in ALL_BEFORE_ALL
        tasks = {}
        for rank in members:
            if beside:
                self.fork(rank, 0)
            mine = max(who for who in self.last if who[0] == rank)
            tasks[rank] = mine if beside else (rank, 0)
        came = {rank: self.step(tasks[rank]) for rank in members}
        group = "g" + "".join(map(str, sorted(members)))
        for rank in sorted(members):
            reads = [span for r, write, span in touched if r == rank and not write]
            writes = [span for r, write, span in touched if r == rank and write]
            t = tasks[rank][1]
            line = self.program.come(rank, name, sorted(members), group, root if rooted else None, reads, writes, t)
            self.program.leave(rank, group, "later" if beside else "ok", t)
            first = name in ("broadcast", "scatter")
            need = list(members) if not rooted else [root] if first else (list(members) if rank == root else [])
            early = self.step(tasks[rank])
            late = self.step(tasks[rank], *(came[m] for m in need))
            self.accesses[line, "r"] = (early, reads, False, False)
            self.accesses[line, "w"] = (late if first and rank != root else early, writes, True, False)

    # --- the truth

    def ordered(self, a, b):
        if a not in self.reach:
            todo, seen = [a], set()
            while todo:
                for node in self.after[todo.pop()]:
                    if node not in seen:
                        seen.add(node)
                        todo.append(node)
            self.reach[a] = seen
        return b in self.reach[a]

    def race(self, a, b):
        (one, spans_a, write_a, atomic_a), (two, spans_b, write_b, atomic_b) = self.accesses[a], self.accesses[b]
        meet = any(max(p[0], q[0]) < min(p[1], q[1]) for p in spans_a for q in spans_b)
        conflict = (write_a or write_b) and not (atomic_a and atomic_b)
        return meet and conflict and one != two and not self.ordered(one, two) and not self.ordered(two, one)

    def only(self, keep):
        """The program with all its synchronisation and only these accesses."""
        other = Program(DIES)
        for rank, lines in enumerate(self.program.lines):
            for event in map(json.loads, lines):
                if event["e"] == "acc" and (event["site"], "a") not in keep:
                    continue
                if event["e"] == "op":
                    event["reads"] = event["reads"] if (event["site"], "r") in keep else []
                    event["writes"] = event["writes"] if (event["site"], "w") in keep else []
                other.lines[rank].append(json.dumps(event))
        return other


def lines(*accesses):
    return "race", tuple(sorted(access[0] for access in accesses))


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.integers(4, 26))
def test_every_pair_as_the_transitive_closure_says(seed, length):
    model = Model(program(seed, length))
    touching = [a for a, (_, spans, _, _) in model.accesses.items() if spans][-8:]
    for k, (a, b) in enumerate(itertools.combinations(touching, 2)):
        expected = {lines(a, b)} if model.race(a, b) else set()
        got = {x for x in found(model.only({a, b}).reports(seed + k)) if x[0] == "race"}
        assert got == expected, (a, b)


@settings(max_examples=120)
@given(st.integers(0, 1 << 32), st.integers(4, 60))
def test_all_at_once_finds_a_race_of_each_access_that_has_one(seed, length):
    model = Model(program(seed, length))
    touching = [a for a, (_, spans, _, _) in model.accesses.items() if spans]
    true = {lines(a, b) for a, b in itertools.combinations(touching, 2) if model.race(a, b)}
    got = {x for x in found(model.program.reports(seed)) if x[0] == "race"}
    assert got <= true
    told = {line for _, pair in got for line in pair}
    assert all(told & set(pair) for _, pair in true)
