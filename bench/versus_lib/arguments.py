"""Types of arguments that several benchmarks of peers take."""

import argparse


def positive(kind):
    """A number above 0."""

    def convert(text):
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value
    return convert
