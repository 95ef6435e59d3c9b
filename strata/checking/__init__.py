"""``strata-run --check``: finds races and other misuse of the fabric in programs.

A die under it records what it does as events (``recorder``) and sends them to a server
(``server``), whose analyser (``analyser``) puts the dies' events into one order, the one that
the program's own synchronisation makes, and reports what that order does not cover.
Nothing of this package is imported by a die that is not checked.
"""
