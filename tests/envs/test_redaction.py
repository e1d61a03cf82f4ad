"""Secrets are removed from what is printed, logged and recorded, whatever a server says."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import quote

import pytest

from agents.clients.endpoint import ChatClient, Endpoint, EndpointFailed
from agents.clients.web_search import WebEndpoint, WebSearch
from envs.builtin.webarena.judge import ModelJudge
from envs.errors import ConfigError, EnvCrashed, SamplerFailed, SearchFailed, describe
from envs.network.client import Backoff
from envs.redaction import REDACTION, clean_logs, redact, register_secret, register_url, scope_of_secrets
from envs.remote.servers import Servers, WireProtocol
from envs.types import Item
from flows.cli import command_line

KEY = 'sk-live/4f9+"x"==\'Zq81'
"""With characters that URLs and JSON escape."""

PLAIN_KEY = "key-4f9Zq81-0123456789"


@contextmanager
def echo(status: int, *, before: str = "") -> Iterator[str]:
    """The URL of a server that answers each request with its headers, after `before`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = f"{before}{dict(self.headers)!s} {self.headers.get('Authorization')}".encode()
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def parts(key: str) -> list[str]:
    """Return the substrings of a key that must not appear either."""
    return [key[start : start + 8] for start in range(len(key) - 8)]


def assert_clean(text: str, key: str = PLAIN_KEY) -> None:
    assert not [part for part in parts(key) if part in text], text


def ask_endpoint(url: str) -> str:
    endpoint = Endpoint(f"{url}/v1", "toy", api_key_variable="A_NAME_OF_NO_MEANING", max_attempts=1)
    client = ChatClient(endpoint)
    with pytest.raises((EndpointFailed, ConfigError)) as error_info:
        asyncio.run(client.ask({"messages": []}, read=lambda reply: reply))
    cause: BaseException | None = error_info.value
    messages = []
    while cause is not None:
        messages.append(str(cause))
        cause = cause.__cause__
    return "\n".join(messages)


@pytest.mark.parametrize("status", [200, 400, 401, 429, 500])
@pytest.mark.parametrize("before", ["", *("x" * n for n in (120, 180, 220, 240, 260, 270))], ids=len)
def test_an_endpoint_that_repeats_the_request_does_not_tell_the_key(
    status: int, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key may be anywhere, also at the end of the quotation."""
    monkeypatch.setenv("A_NAME_OF_NO_MEANING", PLAIN_KEY)
    with echo(status, before=before) as url:
        messages = ask_endpoint(url)
    assert "127.0.0.1" in messages
    assert_clean(messages)


def web_search(url: str) -> None:
    asyncio.run(
        WebSearch(WebEndpoint(url, "serper", api_key_variable="SEARCH", max_attempts=1)).search("q", top_k=1)
    )


def judge(url: str) -> None:
    asyncio.run(ModelJudge(url, "m", PLAIN_KEY).same_answer(question="q", reference="r", answer="a"))


def environment(protocol: WireProtocol) -> Callable[[str], None]:
    def play(url: str) -> None:
        servers = Servers("textcraft", [url], protocol=protocol, token=PLAIN_KEY, patience_s=0.1)
        asyncio.run(servers.make().reset(Item(item_id="textcraft_1", env="textcraft")))

    return play


@pytest.mark.parametrize("status", [200, 401, 500])
@pytest.mark.parametrize("ask", [web_search, judge, environment("agentgym"), environment("wingspan")])
def test_nor_do_other_servers(
    ask: Callable[[str], None], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH", PLAIN_KEY)
    monkeypatch.setattr("envs.network.client.ASK", Backoff(max_attempts=1, first_s=1.0))
    with echo(status) as url, pytest.raises((ConfigError, EnvCrashed, SearchFailed)) as error_info:
        ask(url)
    assert_clean(f"{error_info.value}\n{describe(error_info.value)}")


def test_a_secret_is_found_as_urls_and_json_write_it() -> None:
    register_secret(KEY)
    for text in (KEY, quote(KEY, safe=""), json.dumps({"a": KEY}), f"Bearer {KEY}!"):
        assert_clean(redact(text), KEY)
        assert REDACTION in redact(text)
    assert str(SamplerFailed(f"the server said {KEY}")) == f"the server said {REDACTION}"
    assert describe(KeyError(KEY)) == f"KeyError: '{REDACTION}'"
    register_secret("abc")
    register_secret(None)
    assert redact("abc") == "abc"  # no secret: it would be found in half of all words


@pytest.mark.parametrize("name", ["HF_TOKEN", "WINGSPAN_TOKEN", "OPENAI_API_KEY", "MLFLOW_TRACKING_PASSWORD"])
def test_variables_that_say_what_they_hold_are_secret(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "hf_0123456789")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "parallel")
    assert redact("parallel with hf_0123456789") == f"parallel with {REDACTION}"


def test_passwords_of_urls_are_known_by_their_form() -> None:
    assert redact("redis://:pa55@h:1/0, http://ada:p%40ss@host/x") == (
        f"redis://{REDACTION}@h:1/0, http://{REDACTION}@host/x"
    )
    assert redact("http://host:80/a@b and ssh://git@host") == "http://host:80/a@b and ssh://git@host"
    assert redact("{'Authorization': 'Basic YWRhOnBhc3M='}") == f"{{'Authorization': 'Basic {REDACTION}'}}"
    register_url("postgresql://ada:p%40ssw0rd@db/mlflow")
    assert redact("password p@ssw0rd, p%40ssw0rd") == f"password {REDACTION}, {REDACTION}"


def test_a_scope_forgets_what_was_registered_inside_it() -> None:
    register_secret("outside-0123")
    with scope_of_secrets():
        register_secret("outside-0123")
        register_secret("inside-0123")
        assert redact("outside-0123 inside-0123") == f"{REDACTION} {REDACTION}"
    assert redact("outside-0123 inside-0123") == f"{REDACTION} inside-0123"


def test_what_is_logged_is_clean(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "_logRecordFactory", logging.getLogRecordFactory())
    register_secret(PLAIN_KEY)
    clean_logs()
    clean_logs()
    log = logging.getLogger("somebody.else")
    try:
        raise RuntimeError("with " + PLAIN_KEY)
    except RuntimeError:
        log.exception("it said %s", PLAIN_KEY)
    log.warning("%d of %s", 3, "ten")
    assert_clean(caplog.text)
    assert f"it said {REDACTION}" in caplog.text
    assert f"RuntimeError: with {REDACTION}" in caplog.text
    assert caplog.records[-1].args == (3, "ten")


def test_a_traceback_of_the_command_line_is_clean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging, "_logRecordFactory", logging.getLogRecordFactory())
    register_secret(PLAIN_KEY)

    def fail(**_: object) -> None:
        raise RuntimeError("with " + PLAIN_KEY)

    monkeypatch.setattr(command_line, "app", fail)
    with pytest.raises(SystemExit) as exit_info:
        command_line.run_app()
    assert exit_info.value.code == 1
    messages = capsys.readouterr().err
    assert f"RuntimeError: with {REDACTION}" in messages
    assert_clean(messages)
