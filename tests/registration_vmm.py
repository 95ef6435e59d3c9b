"""Steps of ``registration_play`` with strata.vmm: addresses, physical memory, aliases, exports."""

import numpy as np
from registration_model import ACCESS, PAGE, Page

from strata import errors, vmm

MAX_HANDS, MAX_RANGES = 4, 4  # of a die


class VmmSteps:
    """A part of ``Player``, which has ``group``, ``me``, ``model``, ``mine``, ``tell`` and ``bury``."""

    def do_hand(self, rank, a, b):
        if len(self.model.held_by(rank)) >= MAX_HANDS:
            return
        hand = self.model.hand(rank, 1 + a % 3)
        if self.me == rank:
            self.mine[hand.name] = vmm.create_handle(len(hand.serials) * PAGE)

    def do_reserve(self, rank, a, b):
        if len(self.model.ranges_of(rank)) >= MAX_RANGES:
            return
        span = self.model.range(rank, 1 + a % 6)
        address = 0
        if self.me == rank:
            alignment = (0, 1, 4 * PAGE)[b % 3]
            self.mine[span.name] = made = vmm.reserve_address(len(span.pages) * PAGE, alignment)
            address = made.address
            assert address % max(alignment, PAGE) == 0
        span.address = self.tell(rank, address)

    def do_map(self, rank, a, b):
        ranges, hands = self.model.ranges_of(rank), self.model.held_by(rank)
        if not ranges or not hands:
            return
        span, hand = ranges[a % len(ranges)], hands[b % len(hands)]
        first = b % len(span.pages)
        at = (a + b) % len(hand.serials)
        n = 1 + b // 3 % (len(hand.serials) - at)
        if first + n > len(span.pages):
            return
        access = ACCESS[(a + b // 2) % len(ACCESS)]
        args = first * PAGE, at * PAGE, n * PAGE
        if not span.free(first, n):
            if self.me == rank:
                self.refused(vmm.map, self.mine[span.name], self.mine[hand.name], *args)
            return
        if self.me == rank:
            vmm.map(self.mine[span.name], self.mine[hand.name], *args)
            if access != "none":
                vmm.set_access(self.mine[span.name], access, first * PAGE, n * PAGE)
        span.pages[first : first + n] = [Page(hand, at + i, access) for i in range(n)]

    def refused(self, fn, *args):
        try:
            fn(*args)
        except errors.InvalidArgument:
            return
        raise AssertionError(f"{fn.__name__}{args[1:]} ought to raise InvalidArgument, and returned")

    def part(self, rank, a, b):
        """(range, first page, pages) of something mapped; None: there is nothing."""
        ranges = [span for span in self.model.ranges_of(rank) if any(span.pages)]
        if not ranges:
            return None
        span = ranges[a % len(ranges)]
        first = [i for i, page in enumerate(span.pages) if page][b % sum(map(bool, span.pages))]
        return span, first, 1 + a % span.mapped(first)

    def do_unmap(self, rank, a, b):
        found = self.part(rank, a, b)
        if found is None:
            return
        span, first, n = found
        if self.me == rank:
            vmm.unmap(self.mine[span.name], first * PAGE, n * PAGE)
        span.pages[first : first + n] = [None] * n

    def do_access(self, rank, a, b):
        found = self.part(rank, a, b)
        if found is None:
            return
        span, first, n = found
        access = ACCESS[(a + b) % len(ACCESS)]
        if self.me == rank:
            vmm.set_access(self.mine[span.name], access, first * PAGE, n * PAGE)
        span.pages[first : first + n] = [p._replace(access=access) for p in span.pages[first : first + n]]

    def do_remap(self, rank, a, b):
        """Other memory under the same addresses at once."""
        found = self.part(rank, a, b)
        hands = self.model.held_by(rank)
        if found is None or not hands:
            return
        span, first, n = found
        hand = hands[b % len(hands)]
        n = min(n, len(hand.serials))
        if self.me == rank:
            mine = self.mine[span.name]
            vmm.unmap(mine, first * PAGE, n * PAGE)
            vmm.map(mine, self.mine[hand.name], first * PAGE, 0, n * PAGE)
            vmm.set_access(mine, "read_write", first * PAGE, n * PAGE)
        span.pages[first : first + n] = [Page(hand, i, "read_write") for i in range(n)]

    def do_close(self, rank, a, b):
        """Gives a range back: after unmapping all, or with all that is mapped."""
        ranges = self.model.ranges_of(rank)
        if not ranges:
            return
        span = ranges[a % len(ranges)]
        self.model.ranges.remove(span)
        if self.me == rank:
            mine = self.mine.pop(span.name)
            if b % 2:
                mine.close()
            else:
                if any(span.pages):
                    self.refused(vmm.free_address, mine)
                    vmm.unmap(mine)
                vmm.free_address(mine)
        self.bury(rank, span.address, len(span.pages) * PAGE)

    def do_release(self, rank, a, b):
        hands = self.model.held_by(rank)
        if not hands:
            return
        hand = hands[a % len(hands)]
        hand.holders.remove(rank)
        if self.me == rank:
            vmm.release(self.mine.pop(hand.name))
        self.model.sweep()

    def do_import(self, rank, a, b):
        """A die takes memory that another holds; a token is good while the die it is of holds it."""
        hands = [hand for hand in self.model.hands if hand.holders and rank not in hand.holders]
        if not hands or len(self.model.held_by(rank)) >= MAX_HANDS:
            return
        hand = hands[a % len(hands)]
        exporter = sorted(hand.holders)[b % len(hand.holders)]
        token = np.zeros(vmm.TOKEN_BYTES, "u1")
        if self.me == exporter:
            token[:] = np.frombuffer(vmm.export_handle(self.mine[hand.name]), "u1")
        self.group.broadcast(token, root=exporter)
        good = hand.owner in hand.holders
        if self.me == rank:
            try:
                self.mine[hand.name] = vmm.import_handle(token.tobytes())
            except errors.RegistrationError:
                assert not good, f"import of {hand}"
            else:
                assert good, f"import of {hand}, which its owner has released, was possible"
        if good:
            hand.holders.add(rank)
        self.meet()  # or the owner might release it before
