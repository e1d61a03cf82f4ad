"""The language model that judges free-form answers: any OpenAI-compatible endpoint.

It is configured by `WEBARENA_JUDGE_URL` (up to `/v1`), `WEBARENA_JUDGE_MODEL` and, if the endpoint needs a
key, `WEBARENA_JUDGE_KEY`. WebArena used gpt-4-1106-preview; results with another model should name it. 118
tasks need a judge: `WEBARENA_JUDGE_URL=none` leaves them out.
"""

import os
import re
from dataclasses import dataclass

from envs.errors import EnvCrashed
from envs.network.client import ask_json
from envs.redaction import register_secret
from envs.requirements.detection import CheckedRequirement

ANSWER_S, ATTEMPTS = 120.0, 3

_SAME_ANSWER = """\
You grade an answer to a question. It may be worded in another way than the reference; what counts is \
whether it means the same. The text N/A in either stands for "this cannot be achieved".
Question: {question}
Reference: {reference}
Answer: {answer}
End with one line that holds your verdict alone: correct, incorrect or partially correct."""
_SAME_REASON = """\
The task below cannot be done, for the reason that is given. Somebody tried it, failed, and reported why. \
Does the report give that reason, if only between the lines?
Task: {task}
Reason: {reason}
Report: {answer}
End with one line that holds your verdict alone: same or different."""


_VERDICT = re.compile(r"(?:(?:my |the )?(?:final )?verdict(?: is)?\W+)?(?P<verdict>[a-z ]+)")
_MARKS = " .*_`\"'"


@dataclass(frozen=True, slots=True)
class ModelJudge:
    """A judge behind an endpoint."""

    url: str
    model: str
    key: str = ""

    async def same_answer(self, *, question: str, reference: str, answer: str) -> bool:
        """Whether `answer` means the same as `reference`; a partially correct answer does not."""
        prompt = _SAME_ANSWER.format(question=question, reference=reference, answer=answer)
        return await self._decide(prompt, accepted="correct", rejected=("incorrect", "partially correct"))

    async def same_reason(self, *, task: str, reason: str, answer: str) -> bool:
        prompt = _SAME_REASON.format(task=task, reason=reason, answer=answer)
        return await self._decide(prompt, accepted="same", rejected=("different",))

    async def _decide(self, prompt: str, *, accepted: str, rejected: tuple[str, ...]) -> bool:
        reply = ""
        for _ in range(ATTEMPTS):
            reply = (await self._ask(prompt)).strip().lower()
            last_line = reply.splitlines()[-1] if reply else ""
            match = _VERDICT.fullmatch(last_line.strip(_MARKS))
            verdict = match and match["verdict"]
            if verdict in rejected:
                return False
            if verdict == accepted:
                return True
        raise EnvCrashed(f"the judge {self.model} gives no verdict: {reply[-80:]!r}")

    async def _ask(self, prompt: str) -> str:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": 768,
        }
        register_secret(self.key)
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        url = f"{self.url}/chat/completions"
        answer = await ask_json("POST", url, timeout_s=ANSWER_S, json=body, headers=headers)
        try:
            return str(answer["choices"][0]["message"]["content"] or "")
        except (KeyError, IndexError, TypeError) as error:
            raise EnvCrashed(
                f"the judge at {url} answers {str(answer)[:80]!r}: it is no chat endpoint"
            ) from error


def judge_of_environment() -> ModelJudge | None:
    """The judge that the environment variables name; None if they name none."""
    url = os.environ.get("WEBARENA_JUDGE_URL", "")
    model = os.environ.get("WEBARENA_JUDGE_MODEL", "")
    if not url or not model or is_left_out():
        return None
    return ModelJudge(url.rstrip("/"), model, os.environ.get("WEBARENA_JUDGE_KEY", ""))


def is_left_out() -> bool:
    """Whether tasks that need a judge are left out."""
    return os.environ.get("WEBARENA_JUDGE_URL", "").lower() == "none"


def _find_remedy() -> str | None:
    if is_left_out() or judge_of_environment() is not None:
        return None
    return (
        "export WEBARENA_JUDGE_URL=https://…/v1 WEBARENA_JUDGE_MODEL=…, or WEBARENA_JUDGE_URL=none to "
        "leave out the 118 tasks that need a judge"
    )


JUDGE_NAMED = CheckedRequirement("a judge of answers", _find_remedy)
