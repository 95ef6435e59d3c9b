from typing import Final

GROUP: Final[str]
TAGS: Final[str]
PACKAGE: Final[str]
BLOCKS: Final[str]

class tag:
    def __init__(self, **tags: str | float | bool) -> None: ...
    def __enter__(self) -> tag: ...
    def __exit__(self, *_: object) -> None: ...
