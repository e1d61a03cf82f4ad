"""The program that runs vLLM for `agents/samplers/vllm.py`, by the Python of another environment.

    python -I vllm_program.py FD OPTIONS

`FD` is one end of a pair of unix sockets. When the sampler's end closes, the program ends, whatever it is
doing. `OPTIONS` are the arguments of `vllm.EngineArgs` as JSON. Both sides write lines of JSON:

    sampler → {"id", "prompt", "params"}       params: the arguments of `vllm.SamplingParams`
              {"abort": id}
              {"load": folder, "version"}      safetensors with Hugging Face's names
    program → {"vocab_size"}                   once the engine is ready
              {"fatal": text}                  if it cannot be made; the program ends
              {"id", "token_ids", "logprobs", "reason", "version"}
              {"id", "error": text}
              {"loaded": version}              with {"error": text} if it failed; the program ends

A reason is `length`, `stop` (a stop token, the last of `token_ids`) or `cut` (a stop text). The program
imports only vLLM and the standard library. Engine, scheduler and worker share its process, in which gloo
listens on loopback.
"""

import json
import os
import queue
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm import RequestOutput
    from vllm.v1.engine.llm_engine import LLMEngine

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process, and torch's store is a file
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
"""What vLLM reads while it is imported."""

_Message = dict[str, Any]


class Program:
    """Carries out the sampler's messages; only the thread of `run` touches the engine."""

    def __init__(self, connection: socket.socket, options: _Message) -> None:
        self._connection = connection
        self._options = options
        self._commands: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._requests: dict[str, _Message] = {}
        self._version = 0
        self._engine: LLMEngine  # made by `run`
        threading.Thread(target=self._read, name="commands", daemon=True).start()

    def run(self) -> None:
        """Make the engine, then sample until the connection closes."""
        try:
            from vllm import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine

            self._engine = LLMEngine.from_engine_args(EngineArgs(**self._options))
        except Exception as error:
            self._send({"fatal": f"{type(error).__name__}: {error}"})
            raise
        self._send({"vocab_size": self._engine.model_config.get_vocab_size()})
        while True:
            while not self._requests or not self._commands.empty():
                self._carry_out(self._commands.get())
            for output in self._engine.step():
                if output.finished:
                    self._answer(output)

    def _carry_out(self, command: _Message) -> None:
        if "prompt" in command:
            self._requests[command["id"]] = command
            self._add(command)
        elif "abort" in command:
            if self._requests.pop(command["abort"], None):
                self._engine.abort_request([command["abort"]])
        else:
            self._load(command["load"], version=command["version"])

    def _add(self, request: _Message) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        try:
            params = SamplingParams(
                **request["params"],
                ignore_eos=True,  # what ends a turn is among the request's stop tokens
                logprobs=0,  # that of the sampled token alone
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            self._engine.add_request(request["id"], {"prompt_token_ids": request["prompt"]}, params)
        except Exception as error:  # as vLLM refuses it: a token outside the vocabulary, a value out of range
            del self._requests[request["id"]]
            self._send({"id": request["id"], "error": str(error)})

    def _load(self, folder: str, *, version: int) -> None:
        """Requests in progress start again, so that each is sampled by one policy."""
        running = list(self._requests.values())
        self._engine.abort_request(list(self._requests))
        try:
            self._engine.collective_rpc("reload_weights", kwargs={"weights_path": folder})
            if not self._engine.reset_prefix_cache():
                raise RuntimeError("vLLM keeps its prefix cache")
        except Exception as error:
            self._send({"loaded": version, "error": f"{type(error).__name__}: {error}"})
            raise
        self._version = version
        for request in running:
            self._add(request)
        self._send({"loaded": version})

    def _answer(self, output: "RequestOutput") -> None:
        if self._requests.pop(output.request_id, None) is None:
            return
        completion = output.outputs[0]
        pairs = zip(completion.token_ids, completion.logprobs, strict=True)
        reason = completion.finish_reason
        if reason == "stop" and isinstance(completion.stop_reason, str):
            reason = "cut"
        self._send(
            {
                "id": output.request_id,
                "token_ids": list(completion.token_ids),
                "logprobs": [entry[token].logprob for token, entry in pairs],
                "reason": reason,
                "version": self._version,
            }
        )

    def _send(self, message: _Message) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _read(self) -> None:
        with self._connection.makefile("rb") as lines:
            for line in lines:
                self._commands.put(json.loads(line))
        os._exit(0)  # the sampler is gone; the engine may be in the middle of a step


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    Program(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])).run()
