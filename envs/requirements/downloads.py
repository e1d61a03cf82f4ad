"""Downloads of data sets: resumed, checked against sizes and checksums, and unpacked.

A file is written to `<path>.part` and renamed when it is complete and correct. `<path>.part.json` holds the
server's name of this version (ETag or date), so that a download never resumes with another version's bytes.
"""

import gzip
import hashlib
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx

from envs.errors import ConfigError, MissingDependency, WingspanError, describe
from envs.files import lock_file, write_atomically, write_json
from envs.network.client import Backoff, TryAgain, is_transient, read_retry_after
from envs.requirements.data_sets import RECEIPT, DataFile, DataSet, FileEntry, FileFacts, read_receipt

CONNECT_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 60.0
ATTEMPTS = 5
"""The attempts in a row without a new byte, before a download fails; the bytes so far are kept."""
PAUSE_S = 1.0
"""Before the second attempt; doubled before each further one, unless the server says how long."""
MAX_PAUSE_S = 300.0
"""The most that a server may ask for; rate limits count minutes."""
BLOCK_BYTES = 1 << 20


class DownloadFailed(WingspanError):
    """A file could not be downloaded or is not the expected one; the text names it and what to do."""


DownloadProgress = Callable[[str, int, int | None], None]
"""Receives each file's path and progress: bytes so far, and in all (None if the server does not say)."""


def pull(data_set: DataSet, *, progress: DownloadProgress, pause_s: float = PAUSE_S) -> Path:
    """Download the missing files of `data_set`; return its folder, complete.

    Raises `ConfigError` before any download if the data set is made locally or the disk has too little space;
    `DownloadFailed` for a file that fails (files downloaded before it are kept).
    """
    _check_downloadable(data_set)
    folder = data_set.folder
    folder.mkdir(parents=True, exist_ok=True)
    with lock_file(folder.with_name(f".{data_set.name}.lock")):
        receipt = read_receipt(folder).get("files", {})
        absent_files = [file for file in data_set.files if not _is_here(file, data_set, receipt)]
        _check_disk(absent_files, folder)
        for file in absent_files:
            recorded_sha256 = receipt[file.path].get("sha256") if file.path in receipt else None
            entry = _fetch(
                file,
                folder,
                sha256=file.sha256 or (recorded_sha256 if isinstance(recorded_sha256, str) else None),
                progress=progress,
                pause_s=pause_s,
            )
            for other_entry in receipt.values():  # an archive may replace files of another
                for path in entry.get("unpacked", {}):
                    other_entry.get("unpacked", {}).pop(path, None)
            receipt[file.path] = entry
            write_json(folder / RECEIPT, {"files": receipt})
    absent_paths = [path for path in data_set.required_paths if not (folder / path).exists()]
    if absent_paths:
        raise MissingDependency(
            f"{data_set.name!r} was downloaded, but has no {', '.join(absent_paths)}: upstream's files have "
            f"changed; put the right ones into {folder}"
        )
    return folder


def faults(data_set: DataSet) -> Iterator[str]:
    """The problems with the files on disk, one line each; reads all of them."""
    _check_downloadable(data_set)
    receipt = read_receipt(data_set.folder).get("files", {})
    for file in data_set.files:
        path, entry = data_set.folder / file.path, receipt.get(file.path)
        if entry is None:
            yield f"{path}: not downloaded by wingspan data pull {data_set.name}"
        elif not file.unpack:
            yield from _file_faults(path, entry)
        elif "unpacked" not in entry:
            yield (
                f"{path}: the files in it were not recorded, so they cannot be checked; delete "
                f"{data_set.folder / RECEIPT} and pull again"
            )
        else:
            for relative, facts in entry["unpacked"].items():
                yield from _file_faults(data_set.folder / relative, facts)
    downloads = {file.path for file in data_set.files}
    for relative in data_set.required_paths:
        if relative not in downloads and not (data_set.folder / relative).exists():
            yield f"{data_set.folder / relative}: is not there"


def _file_faults(path: Path, facts: FileFacts) -> Iterator[str]:
    """`facts`: what the receipt says of the file."""
    if not path.is_file():
        yield f"{path}: is not there"
    elif path.stat().st_size != facts["bytes"]:
        yield f"{path}: has {path.stat().st_size} bytes; {facts['bytes']} were downloaded"
    elif _sha256(path) != facts["sha256"]:
        yield f"{path}: has other contents than the download"


def _check_downloadable(data_set: DataSet) -> None:
    if not data_set.files:
        name = data_set.name
        raise ConfigError(f"data set {name!r} is made, not downloaded; run: wingspan data make {name}")


def _is_here(file: DataFile, data_set: DataSet, receipt: Mapping[str, FileEntry]) -> bool:
    entry = receipt.get(file.path)
    if entry is None or entry["url"] != file.url:
        return False
    folder = data_set.folder
    if not file.unpack:
        return _has_size(folder / file.path, entry)
    # Those of all archives, which are unpacked in their order: one may replace files of another.
    unpacked = [item for other in receipt.values() for item in other.get("unpacked", {}).items()]
    return all((folder / path).exists() for path in data_set.required_paths) and all(
        _has_size(folder / path, facts) for path, facts in unpacked
    )


def _has_size(path: Path, facts: FileFacts) -> bool:
    return path.is_file() and path.stat().st_size == facts["bytes"]


def _check_disk(files: list[DataFile], folder: Path) -> None:
    num_bytes = sum((file.bytes or 0) - _size(_part(folder / file.path)) for file in files)
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise ConfigError(
            f"the download needs {num_bytes / 1e9:.1f} GB, and {folder} has {free / 1e9:.1f} GB free; free "
            "some space, or set WINGSPAN_DATA to another folder"
        )


def _fetch(
    file: DataFile, folder: Path, *, sha256: str | None, progress: DownloadProgress, pause_s: float
) -> FileEntry:
    """Download, check, unpack; return the file's entry in the receipt."""
    path = folder / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _part(path)
    _download(
        file.url,
        part,
        wants_page=path.suffix in (".html", ".htm"),
        progress=lambda done, total: progress(file.path, done, total or file.bytes),
        pause_s=pause_s,
    )
    size, digest = part.stat().st_size, _sha256(part)
    for quantity, target, actual in (("bytes", file.bytes, size), ("sha256", sha256, digest)):
        if target is not None and actual != target:
            _delete_part(part)
            raise DownloadFailed(
                f"{file.url}: {quantity} is {actual}, not {target}, for {file.path}; the file was deleted. "
                "Pull again; if that does not help, upstream has changed the file"
            )
    _version(part).unlink(missing_ok=True)
    part.replace(path)
    entry: FileEntry = {"url": file.url, "bytes": size, "sha256": digest}
    if file.unpack:
        entry["unpacked"] = {
            os.path.relpath(unpacked, folder): {"bytes": unpacked.stat().st_size, "sha256": _sha256(unpacked)}
            for unpacked in _unpack(path, url=file.url)
        }
        path.unlink()
    return entry


def _download(
    url: str, part: Path, *, wants_page: bool, progress: Callable[[int, int | None], None], pause_s: float
) -> None:
    """Complete `part`, over as many connections as that takes."""

    def connect() -> None:
        before = _size(part)
        try:
            _receive(url, part, wants_page=wants_page, progress=progress)
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            size = _size(part)
            text = f"{url}: {describe(error)}; {size} bytes are kept; run the same command to continue"
            wait_s = None
            if isinstance(error, httpx.HTTPStatusError):
                if not is_transient(error.response):
                    raise DownloadFailed(text) from error
                wait_s = read_retry_after(error.response)
            raise TryAgain(text, wait_s=wait_s, has_progressed=size > before) from error

    try:
        Backoff(max_attempts=ATTEMPTS, first_s=pause_s, max_s=MAX_PAUSE_S).retry_sync(connect)
    except TryAgain as error:
        raise DownloadFailed(str(error)) from error


def _receive(url: str, part: Path, *, wants_page: bool, progress: Callable[[int, int | None], None]) -> None:
    """One connection: from the end of `part`, or from the start if the server has another version."""
    size, version = _size(part), _read_version(part)
    headers = {"Accept-Encoding": "identity"}
    if size and version is not None:
        headers |= {"Range": f"bytes={size}-", "If-Range": version}
    timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    with httpx.stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response:
        if response.status_code == 416 and response.headers.get("Content-Range") == f"bytes */{size}":
            return  # it was complete already
        response.raise_for_status()
        if not wants_page and response.headers.get("Content-Type", "").startswith("text/html"):
            raise DownloadFailed(f"{url} answers with a web page instead of a file; look at it in a browser")
        is_resumed = response.status_code == 206
        start = size if is_resumed else 0
        length = response.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        if not is_resumed:
            _delete_part(part)
            _write_version(part, response.headers)
        with part.open("ab") as sink:
            done = start
            progress(done, total)
            for block in response.iter_raw():
                sink.write(block)
                done += len(block)
                progress(done, total)
    if total is not None and done < total:
        raise httpx.RemoteProtocolError(f"the connection ended after {done} of {total} bytes")


def _unpack(path: Path, *, url: str) -> list[Path]:
    """Unpack next to `path`; return the files. Nothing is written outside its folder."""
    folder = path.parent
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                paths = [Path(archive.extract(member, folder)) for member in archive.infolist()]
        elif tarfile.is_tarfile(path):
            with tarfile.open(path) as tar:
                tar.extractall(folder, filter="data")
                paths = [folder / tarfile.data_filter(member, str(folder)).name for member in tar]
        else:
            paths = [path.with_suffix("")]
            with gzip.open(path) as source, paths[0].open("wb") as target:
                shutil.copyfileobj(source, target, BLOCK_BYTES)
    except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError) as error:
        path.unlink()
        raise DownloadFailed(
            f"{url} cannot be unpacked ({describe(error)}); the file was deleted, pull again"
        ) from error
    return [unpacked for unpacked in paths if unpacked.is_file()]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _version(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _write_version(part: Path, headers: httpx.Headers) -> None:
    """Write the server's name of this version, if it has one."""
    etag = headers.get("ETag", "")
    name = headers.get("Last-Modified") if not etag or etag.startswith("W/") else etag
    if name:
        write_atomically(_version(part), json.dumps(name))


def _read_version(part: Path) -> str | None:
    try:
        version = json.loads(_version(part).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return version if isinstance(version, str) else None


def _delete_part(part: Path) -> None:
    part.unlink(missing_ok=True)
    _version(part).unlink(missing_ok=True)
