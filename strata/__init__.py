"""A fabric-native communication library for supernodes, on one Linux host."""
