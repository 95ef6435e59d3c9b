"""Random programs of strata.vmm calls on several dies, against a model: every page anybody can see holds what
its handle holds, nothing else can be seen, and all comes back."""

import random

import numpy as np
import pytest
from vmmplay import Level, M, raw

import strata
from strata import bootstrap, errors, testing, vmm

SPANS, PAGES, ACCESS = 3, 6, ("none", "read", "read_write")


class Player:
    """A die's ranges and handles, and what their pages hold: stamps that no two pages share."""

    def __init__(self, group, rng):
        self.group, self.rng, self.count = group, rng, 0
        self.spans = [self.new_span() for _ in range(SPANS)]
        self.handles = []  # (handle, stamps)

    def new_span(self):
        """Range and, of each page, (stamp, access) or None."""
        return [vmm.reserve_address(PAGES * M), [None] * PAGES]

    def create(self):
        handle, stamps = vmm.create_handle(self.rng.randint(1, 4) * M), []
        with vmm.reserve_address(handle.nbytes) as span:
            span.map(handle)
            span.set_access("read_write")
            x = span.array(handle.nbytes // 8, "i8")
            assert not x.any()
            for page in range(handle.nbytes // M):
                self.count += 1
                stamps.append(self.group.rank << 32 | self.count)
                x[page * M // 8 : (page + 1) * M // 8] = stamps[-1]
        self.handles.append((handle, stamps))

    def part(self):
        begin = self.rng.randrange(PAGES)
        return begin, self.rng.randint(begin + 1, PAGES)

    def map(self):
        if not self.handles:
            return
        (handle, stamps), (span, pages) = self.rng.choice(self.handles), self.rng.choice(self.spans)
        begin, end = self.part()
        first = self.rng.randrange(len(stamps))
        n = end - begin
        fits = first + n <= len(stamps) and not any(pages[begin:end])
        try:
            span.map(handle, begin * M, first * M, n * M)
        except errors.InvalidArgument:
            assert not fits
            return
        assert fits
        pages[begin:end] = [(stamp, "none") for stamp in stamps[first : first + n]]

    def change(self, unmap):
        (span, pages), (begin, end) = self.rng.choice(self.spans), self.part()
        access = self.rng.choice(ACCESS)
        try:
            if unmap:
                span.unmap(begin * M, (end - begin) * M)
            else:
                span.set_access(access, begin * M, (end - begin) * M)
        except errors.InvalidArgument:
            assert not all(pages[begin:end])
            return
        assert all(pages[begin:end])
        pages[begin:end] = [None if unmap else (page[0], access) for page in pages[begin:end]]

    def release(self):
        if self.handles:
            self.handles.pop(self.rng.randrange(len(self.handles)))[0].release()

    def close(self):
        """A range goes with all that is mapped in it."""
        place = self.rng.randrange(SPANS)
        self.spans[place][0].close()
        self.spans[place] = self.new_span()

    def step(self):
        calls = [self.create] * 2 + [self.map] * 6 + [lambda: self.change(False)] * 5
        calls += [lambda: self.change(True)] * 3 + [self.release, self.close]
        self.rng.choice(calls)()

    # ---- together

    def look(self):
        """Every die looks at every page of every die."""
        context = bootstrap.context()
        mine = np.full((SPANS, 1 + 2 * PAGES), -1, np.int64)
        for row, (span, pages) in zip(mine, self.spans, strict=True):
            row[0] = span.address
            for page, held in enumerate(pages):
                if held:
                    row[1 + page], row[1 + PAGES + page] = held[0], ACCESS.index(held[1])
        table = self.group.all_gather(mine)
        self.group.barrier()
        for address, *rest in table.reshape(-1, 1 + 2 * PAGES).tolist():
            for page in range(PAGES):
                stamp, access, at = rest[page], rest[PAGES + page], address + page * M
                for writes in (False, True):
                    if access > writes:
                        context.ensure(at, M, writes)
                    else:
                        with pytest.raises(errors.RegistrationError):
                            context.ensure(at, M, writes)
                if access > 0:
                    seen = raw(at, M // 8, "i8")
                    assert seen[0] == stamp and seen[-1] == stamp and (seen[:: 4096 // 8] == stamp).all()
        self.group.barrier()

    def trade(self):
        """Each die offers a handle; each takes some."""
        if not self.handles:
            self.create()
        handle, stamps = self.rng.choice(self.handles)
        tokens = self.group.all_gather(np.frombuffer(handle.export(), "u1"))
        record = np.zeros(8, np.int64)
        record[: 1 + len(stamps)] = [len(stamps), *stamps]
        record[7] = handle.imported
        held = self.group.all_gather(record)
        for peer in range(self.group.size):
            if self.rng.random() < 0.5:
                continue
            try:
                taken = vmm.import_handle(tokens[peer].tobytes())
            except errors.RegistrationError:
                assert held[peer, 7]  # it was imported there, and its exporter has released it
                continue
            self.handles.append((taken, held[peer, 1 : 1 + held[peer, 0]].tolist()))
        self.group.barrier()


def play(group, seed, rounds):
    level = Level(group)
    errors = strata.stats()["registrar_errors"]  # earlier tests of this pool may have made some on purpose
    player = Player(group, random.Random(seed * 64 + group.rank))
    for _ in range(rounds):
        for _ in range(player.rng.randint(1, 12)):
            player.step()
        player.look()
        player.trade()
        while len(player.handles) > 8:
            player.release()
    del player
    level.check()
    assert strata.stats()["registrar_errors"] == errors


@pytest.mark.parametrize("n", [1, 2, 4])
def test_random_programs(n):
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    testing.pool(n).run(play, seed, 25)


def test_random_programs_just_in_time():
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    with testing.Pool(3, registration="just_in_time") as pool:
        pool.run(play, seed, 25)
