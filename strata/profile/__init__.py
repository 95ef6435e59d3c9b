"""What took how long, from any clock, as files that viewers load."""
