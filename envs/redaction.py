"""Removal of secrets from texts before they are printed, logged or recorded.

A server that rejects a request may repeat it, and the key with it. Known secrets are those passed to
`register_secret` where they are read; the values of environment variables whose names say so (`HF_TOKEN`,
`WINGSPAN_TOKEN`, `OPENAI_API_KEY`, …), which worker processes inherit; and, in any text, what stands between
`://user:` and `@`, or follows `Authorization: Bearer`. Texts are redacted where they enter an error
(`envs/errors.py`, and every place that quotes a server, before it cuts the quotation), in the program's log
(`clean_logs`), in reports, and in what MLflow and Prefect receive.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

T = TypeVar("T")

REDACTION = "[redacted]"
MIN_CHARS = 6
"""A shorter secret could not be distinguished from ordinary words and is ignored."""
_SECRET_NAME = re.compile(
    r"(?:(?:API|ACCESS|SECRET|PRIVATE)_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|AUTH_STRING)$", re.IGNORECASE
)
_PATTERNS = (
    re.compile(r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"),
    re.compile(r"(?<=authorization)(?P<between>[\"']?\s*[:=,]\s*[\"']?(?:bearer|basic)\s+)[^\s\"',}]+", re.I),
)
_secrets: set[str] = set()


def register_secret(secret: str | None) -> None:
    """Redact `secret` in all texts from now on, in this process; None and an empty text are ignored."""
    if secret:
        _secrets.add(secret)


@contextmanager
def scope_of_secrets() -> Iterator[None]:
    """Forget, at the end, the secrets that were registered inside; for tests."""
    before = set(_secrets)
    try:
        yield
    finally:
        _secrets.intersection_update(before)


def register_url(url: str) -> None:
    """Register the password, if any, of a URL such as `redis://user:password@host`."""
    try:
        password = urlsplit(url).password or ""
    except ValueError:
        return
    register_secret(password)
    register_secret(unquote(password))


def redact(text: str) -> str:
    """Return `text` without known secrets, including their encodings in URLs, JSON and Python."""
    variables = {value for name, value in os.environ.items() if _SECRET_NAME.search(name)}
    secrets = (secret for secret in _secrets | variables if len(secret) >= MIN_CHARS)
    for secret in sorted(secrets, key=len, reverse=True):
        for form in {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1]}:
            text = text.replace(form, REDACTION)
    for pattern in _PATTERNS:
        text = pattern.sub(lambda match: (match.groupdict().get("between") or "") + REDACTION, text)
    return text


def redact_values(values: T) -> T:
    """Return JSON values, such as parameters, without the secrets in their texts."""
    redacted: T = json.loads(redact(json.dumps(values)))
    return redacted


def without_password(uri: str) -> str:
    """`uri` without the user and the password that it may hold."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else uri


def clean_logs() -> None:
    """Redact every log record of this process, whichever logger writes it. Idempotent."""
    make = logging.getLogRecordFactory()
    if not isinstance(make, _CleanRecords):
        logging.setLogRecordFactory(_CleanRecords(make))


class _CleanRecords:
    """A log record factory that redacts the records of another factory."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make
        self._format = logging.Formatter()

    def __call__(self, *args: object, **kwargs: object) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        try:
            message = record.getMessage()
        except Exception:  # its arguments do not fit; the handler reports that
            return record
        if (clean := redact(message)) != message:
            record.msg, record.args = clean, None
        if record.exc_info:
            trace = self._format.formatException(record.exc_info)
            if (clean := redact(trace)) != trace:
                record.exc_text = clean  # formatters prefer it
        return record
