"""Where bodies are: in memory until they are committed, then in a file, and each time another one after compactions.

What it guarantees: a body that is read is the one that was written, or `BodyDamaged` says where it should have been.
"""

from zlib import crc32

from lineage_stash.store.faults import BodyDamaged
from lineage_stash.store.files import OpenFile
from lineage_stash.store.groups import Body, Buffer


class Place:
    """Where one body is. Whoever holds the place follows the body wherever it is moved."""

    __slots__ = ("checksum", "length", "where")

    def __init__(self, where: Buffer | tuple[OpenFile, int], length: int, checksum: int = 0) -> None:
        # One value, so that a compaction's thread changes it at once and no reader sees half of it.
        self.where = where
        self.length = length
        self.checksum = checksum

    def __repr__(self) -> str:
        where = self.where
        if isinstance(where, tuple):
            return f"Place({where[0].path.name}, {where[1]}, {self.length})"
        return f"Place({self.length} bytes in memory)"

    def add_up(self) -> Body:
        """The body as it is to be written, now with its checksum."""
        assert not isinstance(self.where, tuple), f"{self!r} is written"
        self.checksum = crc32(self.where)
        return Body(self.where, self.checksum)

    def read(self) -> Buffer:
        """The body."""
        where = self.where
        if not isinstance(where, tuple):
            return where
        file, offset = where
        try:
            content = file.read(offset, self.length)
        except OSError as error:
            raise BodyDamaged(file.path, offset, f"it cannot be read: {error}") from error
        if len(content) < self.length:
            raise BodyDamaged(file.path, offset, f"the file ends after {len(content)} of its {self.length} bytes")
        if crc32(content) != self.checksum:
            raise BodyDamaged(file.path, offset, "its checksum does not match")
        return content
