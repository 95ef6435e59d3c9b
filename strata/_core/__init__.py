"""The C core: one module per concept.  Its rules are in DESIGN.md."""
