"""Which rows have an id that an earlier row has."""

import hashlib
from collections.abc import Iterable


class SeenIds:
    """Remembers ids by a hash of 16 bytes, some 100 bytes of memory each."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def repeated(self, ids: Iterable[tuple[int, str]]) -> list[int]:
        """Of (row, id) pairs, the rows whose id came before."""
        found = []
        for row, text in ids:
            key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if key in self._seen:
                found.append(row)
            self._seen.add(key)
        return found
