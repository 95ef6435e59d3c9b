"""Plans: what an operation moves, as plain data that any executor takes."""
