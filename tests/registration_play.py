"""Programs of random steps with fabric memory, played by dies that know what every byte must be.

A program is a list of ``Step``; any list is one, since a step says which thing it concerns by a
number modulo what there is.  Every die of a group plays the same program with the same plain
model (``Model``), so that each knows what the others have; addresses alone are exchanged.

    program = draw(random.Random(seed), 100)
    pool.run(play, program)
"""

import contextlib
import ctypes
import gc
import mmap
import os
from typing import NamedTuple

import numpy as np
from registration_levels import Level, settled
from registration_model import KINDS, PAGE, SIZES, Model, Run, pattern
from registration_vmm import VmmSteps

import strata
from strata import bootstrap, errors, registration

MAX_BLOCKS = 8  # of a die
FABRIC = ("empty", "zeros", "intercepted", "grown")


class Step(NamedTuple):
    kind: str
    rank: int = 0
    a: int = 0
    b: int = 0


def view(address, nbytes):
    """Bytes at an address, of which the library knows nothing."""
    return np.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), "u1")


def refused(fn, *args, error=errors.RegistrationError):
    try:
        fn(*args)
    except error:
        return
    raise AssertionError(f"{fn.__name__}{args}: {error.__name__} expected, and it returned")


def same(found, wanted, what):
    """Asserts that bytes are what they must be, and says which are not."""
    wrong = np.flatnonzero(np.asarray(found) != wanted)
    if wrong.size:
        at = int(wrong[0])
        raise AssertionError(
            f"{what}: {wrong.size} of {wanted.nbytes} bytes are wrong, from {at} to {int(wrong[-1])}; "
            f"{bytes(found[at : at + 16]).hex()} instead of {bytes(wanted[at : at + 16]).hex()}"
        )


def make(kind, nbytes):
    """(array of bytes, registration or None)."""
    if kind in ("empty", "zeros"):
        return getattr(strata, kind)(nbytes, "u1"), None
    if kind == "intercepted":
        with strata.intercept(min_bytes=0):
            return np.empty(nbytes, "u1"), None
    if kind == "grown":
        with strata.intercept(min_bytes=0):
            x = np.zeros(nbytes // 2, "u1")
        x.resize(nbytes, refcheck=False)
        return x, None
    if kind == "shared":
        fd = os.memfd_create("test")
        os.ftruncate(fd, nbytes)
        x = np.frombuffer(mmap.mmap(fd, nbytes), "u1")
        os.close(fd)
    else:
        x = np.empty(nbytes, "u1")
    return x, None if kind == "plain" else strata.register(x)


class Player(VmmSteps):
    """A die's part in a program: the model that all share, and the things that are its own."""

    def __init__(self, group):
        self.group, self.me, self.n = group, group.rank, group.size
        self.context = bootstrap.context()
        self.model = Model(group.size)
        self.mine = {}  # name of a block, hand or range -> what it is here
        self.dead = []  # (owner, address) of pages that were freed
        self.interception = contextlib.ExitStack()
        self.intercepting = False

    def play(self, program):
        for number, step in enumerate(program):
            try:
                getattr(self, "do_" + step.kind)(step.rank % self.n, step.a, step.b)
            except (AssertionError, errors.InvalidArgument, errors.FabricMemoryError) as error:
                raise AssertionError(f"step {number}, {step}, on die {self.me} of {self.n}: {error}") from error

    def clear(self):
        """Lets go of everything.  Local."""
        self.intercepting = False
        self.interception.close()
        for thing in self.mine.values():
            if isinstance(thing, tuple) and thing[1] is not None:
                strata.deregister(thing[1])
        self.mine.clear()
        self.model = Model(self.n)
        gc.collect()
        with contextlib.suppress(errors.InvalidArgument):  # a pool has no limit
            strata.set_limit(None)
        strata.empty_cache()

    # ---- what steps need

    def meet(self):
        """All have come so far.  No fence of registration, and nothing is allocated."""
        self.group.all_reduce(np.zeros(1, "u1"))

    def tell(self, rank, number=0):
        """An integer of one die, on all."""
        return int(self.group.broadcast(np.array([number if self.me == rank else 0], "i8"), root=rank)[0])

    def array(self, source, nbytes, offset):
        """This die's source of an operation, from ``offset`` on."""
        if isinstance(source, Run):
            return self.mine[source.range.name].array(nbytes, "u1", source.first * PAGE + offset)
        return self.mine[source.name][0][offset : offset + nbytes]

    def address_of(self, x):
        """Where peers find an array of bytes; 0: they cannot."""
        if not strata.is_fabric(x):
            x = registration.alias(self.context, x)
        return 0 if x is None else strata.address(x)

    # ---- arrays and registered memory

    def do_new(self, rank, a, b):
        if len(self.model.blocks_of(rank)) >= MAX_BLOCKS:
            return
        block = self.model.block(rank, KINDS[b % len(KINDS)], SIZES[a % len(SIZES)])
        address = 0
        if self.me == rank:
            x, entry = make(block.kind, block.nbytes)
            if block.kind == "zeros":
                same(x, np.zeros(block.nbytes, "u1"), "fresh zeros")
            x[:] = pattern(block.serial, block.nbytes)
            self.mine[block.name] = (x, entry)
            assert strata.is_fabric(x) >= (block.kind in FABRIC)
            address = self.address_of(x)
        block.address = self.tell(rank, address)

    def do_free(self, rank, a, b):
        blocks = self.model.blocks_of(rank)
        if not blocks:
            return
        block = blocks[a % len(blocks)]
        self.model.blocks.remove(block)
        if block.address:
            self.bury(rank, block.address, block.nbytes)
        if self.me == rank:
            x, entry = self.mine.pop(block.name)
            same(x, pattern(block.serial, block.nbytes), f"{block} when it is freed")
            del x
            if entry is not None:
                strata.deregister(entry)
            if b % 2:
                strata.empty_cache()

    def bury(self, rank, address, nbytes):
        pages = {address // PAGE, (address + nbytes - 1) // PAGE}
        self.dead = [*self.dead, *((rank, page * PAGE) for page in sorted(pages))][-60:]

    def do_fill(self, rank, a, b):
        blocks = self.model.blocks_of(rank)
        if blocks:
            self.refill(blocks[a % len(blocks)])

    def refill(self, block):
        block.serial = self.model.serial()
        if self.me == block.owner:
            self.mine[block.name][0][:] = pattern(block.serial, block.nbytes)

    def do_cache(self, rank, a, b):
        if self.me == rank:
            strata.empty_cache((0, 0, PAGE, 5 * PAGE)[a % 4])

    def do_limit(self, rank, a, b):
        """No room beyond a limit; with None again there is."""
        if self.me != rank:
            return
        if self.context.config.registration == "pool":
            refused(strata.set_limit, 0, error=errors.InvalidArgument)
            return
        strata.set_limit(a % 3 * PAGE)
        refused(strata.empty, 4 * PAGE, "u1", error=errors.FabricMemoryError)
        strata.set_limit(None)

    def do_intercept(self, rank, a, b):
        """numpy's arrays of all dies become fabric memory, or no longer.  Not the smallest: plans
        that the library makes meanwhile, and keeps, are numpy's too."""
        if self.intercepting:
            self.interception.close()
        else:
            self.interception.enter_context(strata.intercept(min_bytes=(1 << 16, 1 << 20)[a % 2], process=True))
        self.intercepting = not self.intercepting

    # ---- bytes at others' addresses

    def do_peek(self, rank, a, b):
        """All read what lies at an address: after a barrier, or after a check of their own."""
        places = self.model.places()
        if not places:
            return
        place = places[a % len(places)]
        address, nbytes, serial = self.model.where(place)
        if b % 2:
            self.group.barrier()
        else:
            self.meet()
            self.context.ensure(address, nbytes)
        same(view(address, nbytes), pattern(serial, nbytes), f"{place} at {address:#x} of die {place.owner}")
        self.meet()

    def do_poke(self, rank, a, b):
        """One die writes at an address, of its own or of a peer."""
        places = self.model.places(writable=True)
        if not places:
            return
        place = places[a % len(places)]
        serial = self.model.serial()
        address, nbytes, _ = self.model.where(place)
        self.meet()
        if self.me == rank:
            self.context.ensure(address, nbytes, True)
            view(address, nbytes)[:] = pattern(serial, nbytes)
        self.meet()
        self.model.written(place, serial)

    def do_gone(self, rank, a, b):
        """What is freed cannot be reached, nor what has no access; what is there can."""
        mapped, bits = set(), 0
        dead = [address for owner, address in self.dead if owner == rank]
        if self.me == rank:
            for segment in strata.memory_snapshot():
                mapped.update(range(segment["address"], segment["address"] + segment["total_size"], PAGE))
            for block in self.model.blocks_of(rank):  # registered files are not the heap's
                mapped.update(range(block.address // PAGE * PAGE, block.address + block.nbytes, PAGE))
            bits = sum(1 << i for i, address in enumerate(dead) if address in mapped)
        bits = self.tell(rank, bits)
        pages = {address: "read_write" if bits >> i & 1 else None for i, address in enumerate(dead)}
        for span in self.model.ranges_of(rank):
            for i, page in enumerate(span.pages):
                pages[span.address + i * PAGE] = page.access if page else None
        for address, access in pages.items():
            if access in ("read", "read_write"):
                self.context.ensure(address, PAGE)
            else:
                refused(self.context.ensure, address, 8)
            if access == "read_write":
                self.context.ensure(address, PAGE, True)
            else:
                refused(self.context.ensure, address, 8, True)
        self.meet()

    def do_frames(self, rank, a, b):
        """Each die's frames are those that live things need, the cache's, and the quarantine's."""
        hands = self.model.frames(self.me)
        settled(self.context, hands)
        self.meet()

    # ---- operations

    def chosen(self, a, b, blocks_only=False):
        """A source of each die, bytes of each that take part, and where in it they begin."""
        sources = []
        for rank in range(self.n):
            there = self.model.blocks_of(rank) if blocks_only else self.model.sources(rank)
            pick = (a + rank) % (len(there) + 1)
            if pick == len(there):  # a fresh one, that goes right after
                made = self.model.block(rank, "empty", SIZES[(a + b) % len(SIZES)])
                self.model.blocks.remove(made)
                if rank == self.me:
                    x = strata.empty(made.nbytes, "u1")
                    x[:] = pattern(made.serial, made.nbytes)
                    self.mine[made.name] = (x, None)
                sources.append(made)
            else:
                sources.append(there[pick])
        nbytes = min(min(s.nbytes for s in sources), 3 * PAGE)
        nbytes = max(8, nbytes >> (b % 4)) // 8 * 8
        return sources, nbytes, [(s.nbytes - nbytes) // 8 // (1 + b % 3) * 8 for s in sources]

    def finish(self, sources):
        """Fresh sources go."""
        live = {block.name for block in self.model.blocks}
        own = sources[self.me]
        if not isinstance(own, Run) and own.name not in live:
            del self.mine[own.name]

    def do_collect(self, rank, a, b):
        """Every die's memory, whatever it is, in a collective; the bytes are what the model says."""
        sources, nbytes, offsets = self.chosen(a, b)
        words = [self.model.content(s, o, nbytes).view("u8") for s, o in zip(sources, offsets, strict=True)]
        x = self.array(sources[self.me], nbytes, offsets[self.me]).view("u8")
        part = len(words[0]) // self.n
        names = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "gather", "reduce", "broadcast")
        name = names[(a + b) % len(names)]
        later = {"async_op": b % 5 == 0}
        if name in ("reduce_scatter", "all_to_all"):
            x, words = x[: part * self.n], [w[: part * self.n] for w in words]
        if name == "all_gather":
            work, wanted = self.group.all_gather(x, **later), np.stack(words)
        elif name == "all_reduce":
            work, wanted = self.group.all_reduce(x, strata.empty_like(x), **later), sum(words)
        elif name == "reduce_scatter":
            out = strata.empty(part, "u8")
            work, wanted = self.group.reduce_scatter(x, out, **later), sum(words)[self.me * part :][:part]
        elif name == "all_to_all":
            work = self.group.all_to_all(x, strata.empty_like(x), **later)
            wanted = np.concatenate([w[self.me * part :][:part] for w in words])
        elif name == "gather":
            work, wanted = self.group.gather(x, root=rank, **later), np.stack(words)
        elif name == "reduce":
            out = strata.empty_like(x) if self.me == rank else None
            work, wanted = self.group.reduce(x, out, root=rank, **later), sum(words)
        else:
            source = x if self.me == rank else strata.empty_like(x)
            work, wanted = self.group.broadcast(source, root=rank, **later), words[rank]
        got = work.wait() if later["async_op"] else work
        if got is not None:
            same(got.reshape(-1).view("u1"), wanted.reshape(-1).view("u1"), f"{name} of {sources}")
        del x, work, got
        self.finish(sources)

    def do_inplace(self, rank, a, b):
        """all_reduce in place, on parts of blocks, which then get new bytes."""
        sources, nbytes, offsets = self.chosen(a, b, blocks_only=True)
        wanted = sum(self.model.content(s, o, nbytes).view("u8") for s, o in zip(sources, offsets, strict=True))
        x = self.array(sources[self.me], nbytes, offsets[self.me])
        self.group.all_reduce(x.view("u8"))
        same(x, wanted.view("u1"), f"all_reduce in place of {sources}")
        del x
        for source in sources:
            self.refill(source)
        self.finish(sources)

    def do_message(self, rank, a, b):
        """Each sends to the next."""
        sources, nbytes, offsets = self.chosen(a, b)
        step = 1 + b % self.n
        x = self.array(sources[self.me], nbytes, offsets[self.me])
        work = self.group.send(x, (self.me + step) % self.n, tag=b % 3, async_op=True)
        source = (self.me - step) % self.n
        got = self.group.recv(strata.empty(nbytes, "u1"), source, tag=b % 3)
        work.wait()
        same(got, self.model.content(sources[source], offsets[source], nbytes), f"message of {sources[source]}")
        del x, work, got
        self.finish(sources)


KIND_WEIGHTS = {
    "new": 10, "free": 6, "fill": 3, "cache": 2, "limit": 1, "intercept": 1, "peek": 6, "poke": 3, "gone": 3,
    "frames": 2, "collect": 8, "inplace": 2, "message": 3, "hand": 4, "reserve": 4, "map": 6, "unmap": 3,
    "access": 2, "remap": 3, "close": 2, "release": 3, "import": 3,
}  # fmt: skip
STEPS = tuple(KIND_WEIGHTS)


def draw(rng, length):
    """A program, from a random.Random."""
    kinds = rng.choices(STEPS, KIND_WEIGHTS.values(), k=length)
    return [Step(kind, rng.randrange(12), rng.randrange(60), rng.randrange(60)) for kind in kinds]


_levels = {}  # group of the world -> Level


def play(group, program):
    """Plays a program on a pool's dies, lets go of everything, and looks whether all has come back."""
    level = _levels.get(id(group))
    if level is None:
        warm = Player(group)
        warm.play([Step(kind, 0, i, i) for kind in STEPS for i in range(2)])
        warm.clear()
        _levels.clear()
        level = _levels[id(group)] = Level(group)
    player = Player(group)
    player.play([*program, Step("frames")])
    player.clear()
    level.check()
