"""Secrets, taken out of texts before they are printed, logged or recorded.

A server that refuses a request may repeat it, and the key with it. Known to be secret are: what
`register_secret` was told, wherever one is read; the values of environment variables whose names say so
(`HF_TOKEN`, `WINGSPAN_TOKEN`, `OPENAI_API_KEY`, …), which worker processes have, too; and by their form, in
any text, what stands between `://user:` and `@`, and after `Authorization: Bearer`. Texts are cleaned where
they enter an error (`envs/errors.py`, and each place that quotes a server, before it cuts the quotation), in
the program's log (`clean_logs`), and in what MLflow is given.
"""

import json
import logging
import os
import re
from typing import Any
from urllib.parse import quote, unquote, urlsplit

REDACTED = "[redacted]"
MIN_CHARS = 6
"""A shorter secret is none that could be told from ordinary words, and is left alone."""
_SAYS_SO = re.compile(r"(?:(?:API|ACCESS|SECRET|PRIVATE)_?KEY|TOKEN|SECRET|PASSWORD|PASSWD)$", re.IGNORECASE)
_PATTERNS = (
    re.compile(r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"),
    re.compile(r"(?<=authorization)(?P<between>[\"']?\s*[:=,]\s*[\"']?(?:bearer|basic)\s+)[^\s\"',}]+", re.I),
)
_secrets: set[str] = set()


def register_secret(secret: str | None) -> None:
    """Have `secret` taken out of all texts from now on, in this process; None and the empty text are none."""
    if secret and len(secret) >= MIN_CHARS:
        _secrets.add(secret)


def forget_secrets() -> None:
    """Forget all registered secrets; for tests."""
    _secrets.clear()


def register_url(url: str) -> None:
    """The password of a URL such as `redis://user:password@host`, if it has one."""
    try:
        password = urlsplit(url).password
    except ValueError:
        return
    if password:
        register_secret(password)
        register_secret(unquote(password))


def redact(text: str) -> str:
    """`text` without what is known to be secret; as URLs, JSON and Python write it, too."""
    for secret in sorted(_secrets | _of_environment(), key=len, reverse=True):
        for form in {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1]}:
            text = text.replace(form, REDACTED)
    for pattern in _PATTERNS:
        text = pattern.sub(lambda found: (found.groupdict().get("between") or "") + REDACTED, text)
    return text


def clean_logs() -> None:
    """Have every record of this process's logs redacted, whichever logger writes it. Idempotent."""
    if isinstance(logging.getLogRecordFactory(), _CleanRecords):
        return
    logging.setLogRecordFactory(_CleanRecords(logging.getLogRecordFactory()))


class _CleanRecords:
    """Makes log records as another factory does, with their text redacted."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self._format = logging.Formatter()

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*args, **kwargs)
        try:
            message = record.getMessage()
        except Exception:  # its arguments do not fit; whoever writes it says so
            return record
        if (clean := redact(message)) != message:
            record.msg, record.args = clean, None
        if record.exc_info:
            trace = self._format.formatException(record.exc_info)
            if (clean := redact(trace)) != trace:
                record.exc_text = clean  # which formatters take where there is one
        return record


def _of_environment() -> set[str]:
    return {value for name, value in os.environ.items() if len(value) >= MIN_CHARS and _SAYS_SO.search(name)}
