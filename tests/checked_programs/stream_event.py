"""An event was recorded before what another stream is to wait for."""

from common import main

import strata

KIND = "race"


def wrong(g):
    streams(early=True)


def right(g):
    streams(early=False)


def streams(early):
    x, y, z = strata.ones(1000), strata.zeros(1000), strata.zeros(1000)
    with strata.Stream() as s, strata.Stream() as t:
        event = s.record_event() if early else None
        s.copy(y, x)  # BUG
        t.wait_event(event or s.record_event())
        t.copy(z, y)  # BUG
        s.synchronize()
        t.synchronize()


if __name__ == "__main__":
    main(wrong, right)
