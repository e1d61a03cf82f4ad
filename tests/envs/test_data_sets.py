"""Data sets: made once and reproducibly, or downloaded from a server that disconnects, changes and lies."""

import gzip
import hashlib
import io
import json
import multiprocessing
import os
import random
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from typer.testing import CliRunner

from envs.errors import ConfigError, MissingDependency
from envs.requirements.data_sets import DATA_SETS, RECEIPT, DataFile, DataSet, read_receipt, register_data_set
from envs.requirements.downloads import ATTEMPTS, DownloadFailed, faults, pull
from flows.cli.command_line import app
from tests.support.http_server import serving_in_thread

BODY = random.Random(0).randbytes(3_000_000)


@pytest.fixture(autouse=True)
def own_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINGSPAN_DATA", str(tmp_path / "sets"))


@dataclass
class Server:
    """Serves `bodies`; cuts the first `cuts` answers short, after `cut_at` bytes."""

    bodies: dict[str, bytes] = field(default_factory=lambda: {"big.bin": BODY})
    etag: str = '"one"'
    cuts: int = 0
    cut_at: int = 1_000_000
    refuses_from: int | None = None
    """The number of the first request that is answered 503."""
    limited: int = 0
    """How many requests are answered 429 before any other."""
    page: bool = False
    url: str = ""
    requests: list[str | None] = field(default_factory=list)
    """The `Range` of each request."""

    async def answer(self, request: Request) -> Response:
        span = request.headers.get("Range")
        self.requests.append(span)
        if self.refuses_from is not None and len(self.requests) > self.refuses_from:
            return Response(status_code=503)
        if len(self.requests) <= self.limited:
            return Response(status_code=429, headers={"Retry-After": "0"})
        if self.page:
            return HTMLResponse("<p>too many users</p>")
        body = self.bodies.get(request.path_params["name"])
        if body is None:
            return Response(status_code=404)
        start = 0
        if span is not None and request.headers.get("If-Range") == self.etag:
            start = int(span.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                return Response(status_code=416, headers={"Content-Range": f"bytes */{len(body)}"})
        end = len(body)
        if self.cuts > 0:
            self.cuts -= 1
            end = start + self.cut_at
        headers = {"ETag": self.etag, "Content-Length": str(len(body) - start)}
        return StreamingResponse(iter([body[start:end]]), 206 if start else 200, headers)


@pytest.fixture
def server() -> Iterator[Server]:
    instance = Server()
    with serving_in_thread(Starlette(routes=[Route("/{name:path}", instance.answer)])) as url:
        instance.url = url
        yield instance


def a_set(
    server: Server, *paths: str, unpack: bool = False, required_paths: tuple[str, ...] = (), **fields: Any
) -> DataSet:
    files = tuple(DataFile(path=path, url=f"{server.url}/{path}", unpack=unpack, **fields) for path in paths)
    return DataSet(name="toy", about="a toy", required_paths=required_paths or paths, files=files)


def fetch(data_set: DataSet) -> Path:
    return pull(data_set, progress=lambda path, done, total: None, pause_s=0.01)


def test_a_download_that_breaks_off_goes_on_where_it_stopped(server: Server) -> None:
    server.cuts = 2
    folder = fetch(a_set(server, "big.bin"))
    assert (folder / "big.bin").read_bytes() == BODY
    assert server.requests == [None, "bytes=1000000-", "bytes=2000000-"]


def test_a_download_that_gets_on_may_break_off_more_often_than_one_that_does_not(server: Server) -> None:
    server.cuts, server.cut_at = 2 * ATTEMPTS, 100_000
    folder = fetch(a_set(server, "big.bin"))
    assert (folder / "big.bin").read_bytes() == BODY
    assert len(server.requests) == 2 * ATTEMPTS + 1


def test_one_that_was_given_up_goes_on_at_the_next_command(server: Server) -> None:
    server.cuts, server.refuses_from = 1, 1
    with pytest.raises(DownloadFailed, match=r"503.*1000000 bytes are kept"):
        fetch(a_set(server, "big.bin"))
    assert not (get_folder() / "big.bin").exists()
    server.requests.clear()
    server.refuses_from = None
    assert (fetch(a_set(server, "big.bin")) / "big.bin").read_bytes() == BODY
    assert server.requests == ["bytes=1000000-"]


def test_a_rate_limit_is_waited_for_and_a_missing_file_is_not(server: Server) -> None:
    server.limited = 2
    assert (fetch(a_set(server, "big.bin")) / "big.bin").read_bytes() == BODY
    assert server.requests == [None] * 3
    server.requests.clear()
    server.limited = 2 * ATTEMPTS
    other = replace(a_set(server, "big.bin"), name="other")
    with pytest.raises(DownloadFailed, match="429"):
        fetch(other)
    assert server.requests == [None] * ATTEMPTS
    server.limited = 0
    server.requests.clear()
    with pytest.raises(DownloadFailed, match="404"):
        fetch(a_set(server, "none.bin"))
    assert server.requests == [None]


def test_bytes_of_two_versions_are_never_put_together(server: Server) -> None:
    server.cuts, server.refuses_from = 1, 1
    with pytest.raises(DownloadFailed):
        fetch(a_set(server, "big.bin"))
    server.refuses_from, server.etag, server.bodies = None, '"two"', {"big.bin": BODY[::-1]}
    assert (fetch(a_set(server, "big.bin")) / "big.bin").read_bytes() == BODY[::-1]


def test_what_is_here_is_not_downloaded_again(server: Server) -> None:
    server.bodies["second.bin"] = b"2"
    fetch(a_set(server, "big.bin"))
    fetch(a_set(server, "big.bin", "second.bin"))
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("fields", "message"), [({"bytes": 5}, "bytes is 3000000, not 5"), ({"sha256": "0" * 64}, "not 0{64}")]
)
def test_a_file_that_is_not_what_it_should_be_is_refused(
    server: Server, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(DownloadFailed, match=message):
        fetch(a_set(server, "big.bin", **fields))
    assert not list(get_folder().glob("big*"))


def test_a_right_checksum_passes(server: Server) -> None:
    folder = fetch(a_set(server, "big.bin", sha256=hashlib.sha256(BODY).hexdigest(), bytes=len(BODY)))
    assert (folder / "big.bin").read_bytes() == BODY


def test_a_file_that_upstream_changed_is_noticed_though_it_tells_no_checksum(server: Server) -> None:
    folder = fetch(a_set(server, "big.bin"))
    (folder / "big.bin").unlink()
    server.bodies, server.etag = {"big.bin": BODY[::-1]}, '"two"'
    with pytest.raises(DownloadFailed, match="sha256"):
        fetch(a_set(server, "big.bin"))


def test_a_web_page_in_the_place_of_a_file_is_refused(server: Server) -> None:
    server.page = True
    with pytest.raises(DownloadFailed, match="web page"):
        fetch(a_set(server, "big.bin"))


def test_more_than_the_disk_holds_is_refused_before_anything_is_asked(server: Server) -> None:
    with pytest.raises(ConfigError, match="GB free"):
        fetch(a_set(server, "big.bin", bytes=10**18))
    assert server.requests == []


def make_archive(kind: str) -> bytes:
    sink = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(sink, "w") as archive:
            archive.writestr("in/a.txt", "A")
    else:
        with tarfile.open(fileobj=sink, mode="w:gz") as tar:
            entry = tarfile.TarInfo("in/a.txt")
            entry.size = 1
            tar.addfile(entry, io.BytesIO(b"A"))
    return sink.getvalue()


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_archives_are_unpacked(server: Server, name: str) -> None:
    server.bodies[name] = make_archive(name.rpartition(".")[2])
    folder = fetch(a_set(server, name, unpack=True, required_paths=("in/a.txt",)))
    assert (folder / "in/a.txt").read_text() == "A"
    assert not (folder / name).exists()
    fetch(a_set(server, name, unpack=True, required_paths=("in/a.txt",)))
    assert len(server.requests) == 1
    (folder / "in/a.txt").unlink()
    fetch(a_set(server, name, unpack=True, required_paths=("in/a.txt",)))
    assert (folder / "in/a.txt").read_text() == "A"


def test_one_file_in_gzip_is_unpacked(server: Server) -> None:
    server.bodies["words.txt.gz"] = gzip.compress(b"words")
    folder = fetch(a_set(server, "words.txt.gz", unpack=True, required_paths=("words.txt",)))
    assert (folder / "words.txt").read_bytes() == b"words"


def test_an_archive_cannot_write_outside_its_folder(server: Server) -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as tar:
        entry = tarfile.TarInfo("../../out.txt")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"A"))
    server.bodies["a.tar.gz"] = sink.getvalue()
    with pytest.raises(DownloadFailed, match="outside"):
        fetch(a_set(server, "a.tar.gz", unpack=True, required_paths=("x",)))
    assert not (get_folder().parents[1] / "out.txt").exists()


def test_a_broken_archive_is_reported_and_deleted(server: Server) -> None:
    server.bodies["a.gz"] = gzip.compress(BODY)[:-100]
    with pytest.raises(DownloadFailed, match="cannot be unpacked"):
        fetch(a_set(server, "a.gz", unpack=True, required_paths=("a",)))


def test_a_file_that_was_never_downloaded_is_one_fault(server: Server) -> None:
    [line] = faults(a_set(server, "big.bin", required_paths=("big.bin",)))
    assert "wingspan data pull" in line


def test_check_finds_what_was_changed(server: Server) -> None:
    data_set = a_set(server, "big.bin")
    folder = fetch(data_set)
    assert list(faults(data_set)) == []
    (folder / "big.bin").write_bytes(BODY[::-1])
    assert "other contents" in " ".join(faults(data_set))
    (folder / "big.bin").unlink()
    assert "is not there" in " ".join(faults(data_set))


@pytest.mark.parametrize(
    ("name", "unpacked"), [("a.zip", "in/a.txt"), ("a.tar.gz", "in/a.txt"), ("words.txt.gz", "words.txt")]
)
def test_check_finds_what_was_changed_of_an_archive(server: Server, name: str, unpacked: str) -> None:
    is_gzip = name == "words.txt.gz"
    server.bodies[name] = gzip.compress(b"A") if is_gzip else make_archive(name.rpartition(".")[2])
    data_set = a_set(server, name, unpack=True, required_paths=(unpacked,))
    file = fetch(data_set) / unpacked
    entry = read_receipt(get_folder())["files"][name]
    assert entry["unpacked"] == {unpacked: {"bytes": 1, "sha256": hashlib.sha256(b"A").hexdigest()}}
    assert list(faults(data_set)) == []
    file.write_text("B")
    assert list(faults(data_set)) == [f"{file}: has other contents than the download"]
    file.write_text("damaged")
    assert list(faults(data_set)) == [f"{file}: has 7 bytes; 1 were downloaded"]
    assert (fetch(data_set) / unpacked).read_text() == "A"  # as a file that is no archive
    file.unlink()
    assert f"{file}: is not there" in list(faults(data_set))


def test_a_file_of_two_archives_is_that_of_the_last(server: Server) -> None:
    for text in ("first", "second"):
        sink = io.BytesIO()
        with zipfile.ZipFile(sink, "w") as archive:
            archive.writestr("both.txt", text)
            archive.writestr(f"{text}.txt", text)
        server.bodies[f"{text}.zip"] = sink.getvalue()
    data_set = a_set(server, "first.zip", "second.zip", unpack=True, required_paths=("both.txt",))
    folder = fetch(data_set)
    assert (folder / "both.txt").read_text() == "second"
    assert list(faults(data_set)) == []
    fetch(data_set)
    assert len(server.requests) == 2
    receipt = (folder / RECEIPT).read_text()
    (folder / "first.txt").write_text("damaged")
    fetch(data_set)
    assert (folder / "both.txt").read_text() == "second"
    assert (folder / RECEIPT).read_text() == receipt  # of which the keys of stages are made


def test_what_was_unpacked_without_a_record_is_named(server: Server) -> None:
    server.bodies["words.txt.gz"] = gzip.compress(b"words")
    data_set = a_set(server, "words.txt.gz", unpack=True, required_paths=("words.txt",))
    receipt = fetch(data_set) / RECEIPT
    document = json.loads(receipt.read_text())
    del document["files"]["words.txt.gz"]["unpacked"]  # as of an earlier version
    receipt.write_text(json.dumps(document))
    [line] = faults(data_set)
    assert "words.txt.gz: the files in it were not recorded, so they cannot be checked; delete" in line
    receipt.unlink()
    fetch(data_set)
    assert list(faults(data_set)) == []


def test_what_is_missing_names_the_command() -> None:
    data_set = DataSet(
        name="toy", about="", required_paths=("a", "b"), files=(DataFile(path="a", url="http://x/a"),)
    )
    assert data_set.find_remedy() == "wingspan data pull toy"
    with pytest.raises(MissingDependency, match=r"no .*/toy/a; run: wingspan data pull toy"):
        data_set.prepare()


def write_numbers(folder: Path) -> None:
    with (get_folder().parent / "made.log").open("a") as log:
        log.write("made\n")
    (folder / "numbers.txt").write_text("1 2 3")


NUMBERS = DataSet(name="toy", about="numbers", required_paths=("numbers.txt",), make=write_numbers)


def test_what_is_made_here_is_made_once_by_many_processes() -> None:
    assert NUMBERS.find_remedy() is None
    with multiprocessing.get_context("fork").Pool(4) as pool:
        folders = pool.map(_ready, range(8))
    assert {folder / "numbers.txt" for folder in folders} == {NUMBERS.path("numbers.txt")}
    assert times_made() == 1


def test_it_is_made_anew_when_what_decides_it_has_changed() -> None:
    NUMBERS.prepare()
    replace(NUMBERS, made_with=("pytest",)).prepare()
    replace(NUMBERS, made_with=("pytest",)).prepare()
    assert times_made() == 2


def test_a_making_that_fails_leaves_what_was_there() -> None:
    NUMBERS.prepare()

    def fail(folder: Path) -> None:
        (folder / "numbers.txt").write_text("half")
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        replace(NUMBERS, make=fail, made_with=("pytest",)).prepare()
    assert (get_folder() / "numbers.txt").read_text() == "1 2 3"


def test_a_file_that_is_in_no_data_set_is_named() -> None:
    with pytest.raises(MissingDependency, match=r"other\.txt; run: wingspan data make toy"):
        NUMBERS.path("other.txt")


def test_commands_of_a_data_set_that_is_made_here() -> None:
    run = CliRunner().invoke
    with DATA_SETS.scope():
        register_data_set(NUMBERS)
        assert "made when needed" in run(app, ["data", "list"]).output
        assert run(app, ["data", "make", "toy"]).exit_code == 0
        assert "not downloaded; run: wingspan data make" in str(run(app, ["data", "pull", "toy"]).exception)
        assert "did you mean 'toy'" in str(run(app, ["data", "pull", "toi"]).exception)
    with pytest.raises(ConfigError, match="unknown data set 'toy'"):
        DATA_SETS.find("toy")


def test_commands_of_a_download(server: Server) -> None:
    run = CliRunner().invoke
    with DATA_SETS.scope():
        register_data_set(a_set(server, "big.bin"))
        assert run(app, ["data", "pull", "toy"]).exit_code == 0
        assert "all files are as they were" in run(app, ["data", "check", "toy"]).output
        (get_folder() / "big.bin").unlink()
        assert run(app, ["data", "check", "toy"]).exit_code == 1


def get_folder() -> Path:
    return Path(os.environ["WINGSPAN_DATA"]) / "toy"


def times_made() -> int:
    return len((get_folder().parent / "made.log").read_text().splitlines())


def _ready(_: int) -> Path:
    return NUMBERS.prepare()
