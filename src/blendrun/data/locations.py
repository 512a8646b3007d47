"""Where an input file lies: a path of this machine, or a URL that fsspec opens.

Knows how to find, open and measure a file, not what is in it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlparse

from blendrun.errors import InputError

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file behind a URL; has of `Path` what reading needs."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.url.split("/"))

    def open(self, mode: str) -> BinaryIO:
        """Raises InputError where it cannot be opened."""
        with _told(self.url):
            filesystem, path = _filesystem(self.url)
            return cast(BinaryIO, filesystem.open(path, mode))


Location = Path | RemoteFile


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


def locate(text: str) -> Location:
    """The location that `str` of one names."""
    return RemoteFile(text) if is_url(text) else Path(text)


def local_path(url: str) -> str:
    """A URL that names a file of this machine as its path; every other text as it is."""
    return unquote(urlparse(url).path) if url.startswith("file://") else url


def size_of(location: Location) -> int:
    """Bytes of the file. Raises InputError where it is gone or cannot be asked."""
    if isinstance(location, Path):
        try:
            return location.stat().st_size
        except OSError as error:
            raise InputError(f"cannot read {location}: {error.strerror}") from error
    with _told(location.url):
        filesystem, path = _filesystem(location.url)
        return int(filesystem.size(path))


def remote_files(url: str) -> tuple[list[RemoteFile], bool]:
    """The files that a URL names, sorted, and whether it named just one.

    A pattern names what it matches, a folder everything below it.

    Raises:
        InputError: nothing is there, or the place cannot be asked.
    """
    with _told(url):
        filesystem, path = _filesystem(url)
        if filesystem.isfile(path):
            return [RemoteFile(url)], True
        search = filesystem.glob if _PATTERN.search(path) else filesystem.find
        files = [name for name, info in search(path, detail=True).items() if info["type"] == "file"]
        urls = sorted(filesystem.unstrip_protocol(name) for name in files)
    if not urls:
        raise InputError(f"{url}: no such file, folder or pattern", "check the address")
    return [RemoteFile(url) for url in urls], False


def _filesystem(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise InputError(
            f"{url} needs the package fsspec", "pip install 'blendrun[remote]'"
        ) from error
    filesystem, path = url_to_fs(url)
    return filesystem, str(path)


@contextmanager
def _told(url: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except ImportError as error:  # fsspec says which package opens this kind of URL
        raise InputError(f"cannot open {url}: {error}", "install that package") from error
    except Exception as error:  # every filesystem has errors of its own
        why = str(error) or type(error).__name__
        raise InputError(f"cannot open {url}: {why}", "check the address and access") from error
