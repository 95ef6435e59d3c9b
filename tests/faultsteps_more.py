"""Steps of trials of faults: memory, and what the DMA engine and the boards do."""

import gc
import mmap
import os

import numpy as np
from faultsteps import Steps
from vmmplay import raw

import strata
from strata import sdma, vmm
from strata._core import moe

M = 2 << 20


class Memory(Steps):
    """Arrays that come and go, page by page, and are read by all while they are there."""

    def round(self):
        pages = 1 + self.k % 3
        x = strata.empty(pages * M, "u1")
        x[:: M // 2] = self.rank + self.k
        got = self.g.all_gather(x[: pages * M : 1 << 16].copy())
        assert (got[:, 0] == np.arange(self.n) + self.k).all()
        every = self.g.all_gather(x)
        assert (every[:, :: M // 2] == np.arange(self.n)[:, None] + self.k).all()
        self.g.barrier()
        del x, every
        gc.collect()
        strata.empty_cache()


class Foreign(Steps):
    """A registered mapping of a file, in place."""

    def round(self):
        fd = os.memfd_create("trial")
        os.ftruncate(fd, 8 * self.count)
        x = np.frombuffer(mmap.mmap(fd, 8 * self.count), "i8")
        os.close(fd)
        with strata.register(x) as r:
            assert r.kind == "shared"
            x[:] = self.values(self.rank)
            self.g.all_reduce(x)
            assert (x == self.total()).all()
            self.g.barrier()
        del x, r
        gc.collect()


class Vmm(Steps):
    """Frames below addresses, with and without access."""

    def round(self):
        handle, span = vmm.create_handle(M), vmm.reserve_address(2 * M)
        span.map(handle)
        span.set_access("read_write")
        x = span.array(M // 8, "i8")
        x[:] = self.values(self.rank, M // 8)
        every = self.g.all_gather(x)
        for r in range(self.n):
            assert (every[r] == self.values(r, M // 8)).all()
        del x
        gc.collect()
        span.set_access("read")
        x = span.array(M // 8, "i8")
        y = self.g.all_reduce(x, strata.empty(M // 8, "i8"))
        assert (y == self.total(M // 8)).all()
        del x
        gc.collect()
        span.unmap()
        handle.release()
        span.free()


class Exports(Steps):
    """A handle that goes to all, one after the other being its exporter."""

    def round(self):
        root = (self.victim + self.k) % self.n
        own = vmm.create_handle(M) if self.rank == root else None
        token = np.frombuffer(own.export(), "u1").copy() if own else np.zeros(vmm.TOKEN_BYTES, "u1")
        handle = vmm.import_handle(self.g.broadcast(token, root).tobytes())
        span = vmm.reserve_address(M)
        span.map(handle)
        span.set_access("read_write")
        x = span.array(self.n, "i8")
        x[self.rank] = self.k * 100 + self.rank
        self.g.barrier()
        assert (x == self.k * 100 + np.arange(self.n)).all()
        got = self.g.all_gather(x)
        assert (got == x).all()
        self.g.barrier()
        del x
        gc.collect()
        span.unmap()
        span.free()
        handle.release()
        if own:
            own.release()


class Streams(Steps):
    """Two streams, one of which waits for the other."""

    def prepare(self):
        self.s, self.t = strata.Stream(), strata.Stream()
        self.x, self.y, self.z = (strata.empty(self.count, "i8") for _ in range(3))

    def round(self):
        self.x[:] = self.values(self.rank)
        with strata.stream(self.s):
            self.g.all_reduce(self.x, self.y)
            self.s.fill(self.z, self.k)
            event = self.s.record_event()
        self.t.wait_event(event)
        with strata.stream(self.t):
            way = [(self.g.send, self.y, (self.rank + 1) % self.n), (self.g.recv, self.x, (self.rank - 1) % self.n)]
            for move, array, peer in way if self.rank else way[::-1]:
                move(array, peer)
            self.t.copy(self.z, self.x)
        self.t.synchronize()
        assert (self.y == self.total()).all() and (self.z == self.y).all()
        self.s.synchronize()

    def finish(self):
        self.s.close()
        self.t.close()


class Replays(Steps):
    """A graph, captured once and replayed."""

    def prepare(self):
        self.x, self.y = strata.empty(self.count, "i8"), strata.empty((self.n, self.count), "i8")
        with strata.capture() as self.graph:
            self.g.all_gather(self.x, self.y)
            self.g.all_reduce(self.x)
            self.g.barrier()

    def round(self):
        self.x[:] = self.values(self.rank)
        if self.k % 2:
            self.graph.replay()
        else:
            self.graph.replay(async_op=True).wait()
        assert (self.x == self.total()).all()
        for r in range(self.n):
            assert (self.y[r] == self.values(r)).all()

    def finish(self):
        self.graph.close()


class Submit(Steps):
    """Descriptors in the rings of all, from all; rings are shared by producers."""

    def prepare(self):
        self.ring = sdma.open_ring(64)
        found = self.g.all_gather(strata.array([self.ring.index], "u8"))[:, 0]
        self.rings = [self.ring if r == self.rank else sdma.ring(int(i), r) for r, i in enumerate(found)]
        self.src, self.out = strata.empty(self.count, "i8"), strata.empty((self.n, self.count), "i8")
        self.flags = sdma.flag(self.n)
        mine = strata.array([strata.address(self.src)], "u8")
        self.sources = [int(a) for a in self.g.all_gather(mine)[:, 0]]

    def round(self):
        self.src[:] = self.values(self.rank)
        self.g.barrier()
        works = []
        for r in range(self.n):
            batch = sdma.Batch(block=max(64, self.count * 4 // 64 * 64))
            batch.copy(strata.address(self.out[r]), self.sources[r], 8 * self.count)
            batch.call(strata.array(sdma.Batch().write(self.flags[r : r + 1], self.k + 1).build()))
            works.append(self.rings[r].submit(batch))
        for r, work in enumerate(works):
            sdma.wait(self.flags[r : r + 1], self.k + 1, rank=r)
            work.wait()
            assert (self.out[r] == self.values(r)).all()
        sdma.write(self.flags[:1], self.k + 1)
        self.g.barrier()

    def finish(self):
        self.g.barrier()
        self.ring.close()
        self.ring = None


class Boards(Steps):
    """Rounds on boards, as dispatch and combine have them."""

    AHEAD = 2

    def prepare(self):
        self.memory = strata.zeros(moe.board_bytes(self.n) + 64, "u1")
        at = self.g.all_gather(np.array([moe.format_board(self.memory, self.n)], "u8"))
        self.board = moe.Board(self.g, self.memory, at[:, 0])
        self.data = strata.zeros((moe.ROUNDS, 16), "i8")
        self.block = strata.zeros((moe.ROUNDS, 16), "u4")
        self.posted = self.taken = 0

    def round(self):
        self.posted += 1
        number, slot = self.posted, self.posted % moe.ROUNDS
        if number > moe.ROUNDS:
            self.board.drain(number - moe.ROUNDS)
        self.data[slot] = number * 100 + self.rank
        self.block[slot] = number + self.rank
        self.board.post(number, 5, self.n, 16, [(strata.address(self.data[slot]), 128)],
                        (strata.address(self.block[slot]), 64))  # fmt: skip
        if number > self.AHEAD:
            self._take(number - self.AHEAD)

    def _take(self, number):
        posts, _ = self.board.wait(number)
        for j, post in enumerate(posts):
            assert post["epoch"] == number and (self.board.block(post) == number + j).all()
        self.board.done(number)
        self.taken = number

    def finish(self):
        for number in range(self.taken + 1, self.posted + 1):
            self._take(number)
        for number in range(max(1, self.posted - moe.ROUNDS + 1), self.posted + 1):
            self.board.drain(number)
        self.g.barrier()
        self.board.close()


class Moe(Steps):
    """Tokens to experts and back, through a Buffer."""

    def prepare(self):
        import moe_dies
        import moe_play as play

        self.play, self.dies = play, moe_dies
        mode = "ll" if self.trial.nbytes % 16 else "ht"
        made = [play.Round(mode=mode, dtype="float32", hidden=64, tokens=tuple((3 * m + 2) % 7 for m in range(self.n)),
                           topk=3, salt=salt, wait="event") for salt in range(2)]  # fmt: skip
        self.cases = [play.Case(tuple(range(self.n)), 10, None, (r,), order=(0,)) for r in made]
        self.buffer = moe_dies.buffer_of(self.g, self.cases[0]._replace(rounds=tuple(made), order=(0, 1)))

    def round(self):
        case = self.cases[self.k % 2]
        kind = self.dies.High if case.rounds[0].mode == "ht" else self.dies.Low
        one = kind(self.buffer, case, case.rounds[0], self.rank)
        one.dispatch()
        one.wait()
        one.received()
        one.combine()
        one.wait()
        one.summed()
        wanted = self.play.expected(case)[0][self.rank]
        assert not self.play.differences(case._replace(members=(0,)), [[one.found]], [[wanted]])

    def finish(self):
        self.g.barrier()
        self.buffer.destroy()


class Refused(Steps):
    """A member's output may not be written: it gets that error, the others a mismatch, and the group goes on."""

    def prepare(self):
        self.handle, self.span = vmm.create_handle(M), vmm.reserve_address(M)
        self.span.map(self.handle)
        self.span.set_access("read")
        self.x = strata.empty(1000, "i8")

    def round(self):
        self.x[:] = self.values(self.rank, 1000)
        bad = self.rank == self.victim
        out = raw(self.span.address, 1000, "i8") if bad else strata.empty(1000, "i8")
        try:
            self.g.all_reduce(self.x, out)
        except strata.RegistrationError:
            assert bad
        except strata.CollectiveMismatch:
            assert not bad
        else:
            raise AssertionError("read-only memory was written")
        y = self.g.all_reduce(self.x, strata.empty(1000, "i8"))
        assert (y == self.total(1000)).all()
