"""Memory stays mapped in an address range that nobody closes."""

from common import main

from strata import vmm

KIND = "leak"
ENDS = True  # a job of its own


kept = []


def wrong(g):
    span, handle = vmm.reserve_address(1 << 21), vmm.create_handle(1 << 21)  # BUG
    vmm.map(span, handle)
    handle.release()
    kept.append(span)


def right(g):
    span, handle = vmm.reserve_address(1 << 21), vmm.create_handle(1 << 21)
    vmm.map(span, handle)
    handle.release()
    kept.append(span)
    span.close()


if __name__ == "__main__":
    main(wrong, right)
