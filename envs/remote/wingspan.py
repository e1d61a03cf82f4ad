"""Facts of Wingspan's own protocol that server and client share: the WebSocket `/sessions`.

A message of either side is a JSON array. The client's has requests:

- `{"id": 7, "session": 2, "type": "reset", "item_id": "textcraft_12", "seed": 0, "metadata": {}}` opens
  session 2 if it is not open, and begins an episode.
- `{"id": 8, "session": 2, "type": "step", "action": "inventory"}`
- `{"id": 9, "session": 2, "type": "close"}`, which has no answer

The server's has answers in any order, each with the `id` of its request: `observation`, `reward`,
`terminated`, `truncated`, `success`, `metrics` and `state_key`, or `error` with `status` and `detail`, which
mean what they mean over HTTP. The client chooses ids and sessions' numbers. A connection sees its own
sessions only, and they end with it. What either side has to say in one iteration of its event loop is one
message: docs/decisions/0022-shared-connections.md.
"""

PATH = "/sessions"
MAX_BYTES_HEADER = "Wingspan-Max-Bytes"
"""The header of the server's handshake that has the most bytes of a message to it."""
