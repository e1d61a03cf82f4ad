"""Facts of Wingspan's own protocol that server and client share: the WebSocket `/sessions`.

A message of either side is a JSON array. The client's has requests:

- `{"id": 6, "session": 2, "type": "open"}` opens session 2, if it is not open and there is room.
- `{"id": 7, "session": 2, "type": "reset", "item_id": "textcraft_12", "seed": 0, "metadata": {}}` does the
  same, and begins an episode.
- `{"id": 8, "session": 2, "type": "step", "action": "inventory"}`
- `{"id": 9, "session": 2, "type": "close"}`, which has no answer

Requests begin in their order. While a session works, another reset or step of it is refused with 409, and a
close ends the one at work, whose answer is 410.

The server's message has answers in any order, each with the `id` of its request. The answer to a reset or
step has `observation`, `reward`, `terminated`, `truncated`, `success`, `metrics` and `state_key`; the answer
to an open has only the `id`. A request that fails is answered with `error` instead: its `status` and `detail`
mean what they mean over HTTP. The client chooses the ids and the numbers of sessions. A connection sees only
its own sessions, and they end with it. What either side sends in one iteration of its event loop is one
message, or several if it exceeds a limit: docs/decisions/0022-shared-connections.md.
"""

from collections.abc import Iterator, Sequence

PATH = "/sessions"
MAX_BYTES_HEADER = "Wingspan-Max-Bytes"
"""The header of the server's handshake that has the most bytes of a message to it."""
MAX_ANSWER_BYTES = 64 << 20
"""Of a message from the server: the answers to as many sessions as share a connection."""


def batches(messages: Sequence[bytes], *, max_bytes: int) -> Iterator[bytes]:
    """JSON arrays of `messages` in their order, each with as many as fit in `max_bytes`, and at least one."""
    start, size = 0, 1  # a bracket; then each message and the comma or bracket after it
    for index, message in enumerate(messages):
        size += len(message) + 1
        if size > max_bytes and index > start:
            yield b"[%b]" % b",".join(messages[start:index])
            start, size = index, len(message) + 2
    yield b"[%b]" % b",".join(messages[start:])
