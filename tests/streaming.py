"""What the tests of streams share."""

from strata import sdma

COUNT = 3000  # elements that travel by plans, not by mailbox


def gated(stream):
    """Holds a stream up until the flag that is returned is raised."""
    flag = sdma.flag()
    stream.submit(sdma.Batch().gate(flag, 1, timeout=60))
    return flag
