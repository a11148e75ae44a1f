"""Objects: whole files by name, wherever a URL leads to: an object store, HDFS, a local folder, or any fsspec place.

What it guarantees: an object is complete or absent, and once `put` has returned it stays, as far as the place keeps
what it has taken. Whatever goes wrong in the place is an `OSError`.

Rules:
- S3 and GCS show an upload when it is complete. Everywhere else an object is written under another name, and gets
  its own in one step; on a local disk after it was synced.
- Nothing is remembered of a listing: it shows every object whose `put` had returned, in whatever process. Object stores
  and HDFS promise that. A network file system that caches listings does not, and is no place for an archive.
- Names are put together here from a folder and a name in it. What a listing says is compared with them and never
  followed.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pyarrow.fs import FileSelector, FileSystem, FileType, FSSpecHandler, LocalFileSystem, PyFileSystem

from lineage_stash.store.archive_faults import ArchiveUnreachable
from lineage_stash.store.files import UNFINISHED, OpenFile, sync_folder
from lineage_stash.store.groups import Buffer

WHOLE_UPLOADS = ("s3", "s3a", "gs", "gcs")
"""Kinds of places that show an upload only when it is complete. In Azure's, pyarrow shows an empty object before."""

AT_ONCE = 16
"""How many requests are under way together, where each of them takes long and does little."""

ONE_REQUEST = "allow_delayed_open=true"
"""Has pyarrow upload a small object to S3 with one request instead of three."""


class Objects:
    """All the objects below one path of a file system."""

    def __init__(self, filesystem: Any, root: str, *, whole_uploads: bool, cached_by: Any = None) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._whole_uploads = whole_uploads
        self._cached_by = cached_by

    def list(self, folder: str) -> dict[str, int]:
        """The names in a folder, without it, and how many bytes each object has."""
        with _as_system_errors():
            if self._cached_by is not None:
                self._cached_by.invalidate_cache()
            found = self._filesystem.get_file_info(FileSelector(self._path(folder), allow_not_found=True))
            return {info.base_name: info.size for info in found if info.type == FileType.File}

    def read(self, name: str, offset: int, length: int) -> bytes:
        """The bytes of an object at an offset; fewer where it ends."""
        with _as_system_errors(), self._filesystem.open_input_file(self._path(name)) as file:
            content: bytes = file.read_at(length, offset)
            return content

    def make_folders(self, folders: Sequence[str]) -> None:
        """Have folders to put objects into, where there are such things."""
        if not self._whole_uploads:
            with _as_system_errors():
                for folder in folders:
                    self._filesystem.create_dir(self._path(folder), recursive=True)

    def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        """Make an object durable; if this raises, it may be there or not."""
        path = self._path(name)
        written = path if self._whole_uploads else path + UNFINISHED
        # In one piece, because a stream that fails between two is closed all the same, and would pass for complete.
        content = b"".join(pieces)
        with _as_system_errors():
            with self._filesystem.open_output_stream(written) as stream:
                stream.write(content)
            if written != path:
                self._filesystem.move(written, path)

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects, if they are there."""
        with _as_system_errors(), ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in pool.map(self._remove, names):
                pass

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


class LocalObjects(Objects):
    """Files below a folder of this machine, synced."""

    def __init__(self, root: str) -> None:
        super().__init__(LocalFileSystem(), root, whole_uploads=False)

    def make_folders(self, folders: Sequence[str]) -> None:
        """Make the root and what is in it, but nothing above: that may be a disk that is not mounted."""
        for path in (Path(self._root), *[Path(self._path(folder)) for folder in folders]):
            if not path.exists():
                path.mkdir(exist_ok=True)
                sync_folder(path.parent)

    def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        """Sync a file, and then its name."""
        path = Path(self._path(name))
        file = OpenFile.begin(path)
        try:
            file.write(pieces, 0)
            file.finish(path)
        finally:
            file.close()


@contextmanager
def _as_system_errors() -> Iterator[None]:
    """Have whatever a file system raises, its own or a plugged-in one's, mean that the place failed."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


# URLs.


def open_objects(url: str) -> Objects:
    """The objects at a URL; nothing is made there yet."""
    scheme = url.partition("://")[0]
    try:
        filesystem, root = FileSystem.from_uri(_with_fewer_requests(url) if scheme == "s3" else url)
    except ValueError as error:
        if "Unrecognized filesystem type" not in str(error):
            raise _unreachable(url, error, "Write it as file:///folder or s3://bucket/folder.") from error
        return _open_with_fsspec(url, scheme)
    except (OSError, ImportError) as error:
        raise _unreachable(url, error, f"See that what {scheme} needs is installed here.") from error
    if isinstance(filesystem, LocalFileSystem):
        return LocalObjects(root)
    if isinstance(filesystem, PyFileSystem):
        return _open_with_fsspec(url.removeprefix("fsspec+"), scheme.removeprefix("fsspec+"))
    return Objects(filesystem, root, whole_uploads=filesystem.type_name in WHOLE_UPLOADS)


def _open_with_fsspec(url: str, scheme: str) -> Objects:
    try:
        filesystem, root = import_module("fsspec.core").url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        remedy = (
            f"pyarrow has no file system for {scheme}://. Correct the URL, or install fsspec and its package for "
            f"{scheme} on every node."
        )
        raise _unreachable(url, error, remedy) from error
    handler = PyFileSystem(FSSpecHandler(filesystem))
    return Objects(handler, root, whole_uploads=scheme in WHOLE_UPLOADS, cached_by=filesystem)


def _with_fewer_requests(url: str) -> str:
    parts = urlsplit(url)
    if "allow_delayed_open" in parts.query:
        return url
    return urlunsplit(parts._replace(query=f"{parts.query}&{ONE_REQUEST}" if parts.query else ONE_REQUEST))


def without_secrets(url: str) -> str:
    """A URL as it may be shown: without a password, and without options, which may be secrets as well."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition("://")[0] + "://…"
    user, at, host = parts.netloc.rpartition("@")
    user = user.partition(":")[0] + ":***" if ":" in user else user
    return urlunsplit((parts.scheme, user + at + host, parts.path, "", ""))


def _unreachable(url: str, error: Exception, remedy: str) -> ArchiveUnreachable:
    # What a library says about a URL may repeat it, password and all.
    shown = without_secrets(url)
    finding = str(error) if shown == url else type(error).__name__
    return ArchiveUnreachable(shown, finding.rstrip("."), remedy)
