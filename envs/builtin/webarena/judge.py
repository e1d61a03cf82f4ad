"""The language model that judges answers which may be worded in many ways: any OpenAI-compatible endpoint.

`WEBARENA_JUDGE_URL` (up to `/v1`), `WEBARENA_JUDGE_MODEL` and, where it wants one, `WEBARENA_JUDGE_KEY`.
WebArena used gpt-4-1106-preview; another model is another judge, and a result should name it. 118 tasks need
one: `WEBARENA_JUDGE_URL=none` leaves them out.
"""

import os
from dataclasses import dataclass

import httpx

from envs.errors import EnvCrashed
from envs.redaction import register_secret

ANSWER_S, TRIES = 120.0, 3
NONE = "none"

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


@dataclass(frozen=True, slots=True)
class ModelJudge:
    """A judge behind an endpoint."""

    url: str
    model: str
    key: str = ""

    async def same_answer(self, *, question: str, reference: str, answer: str) -> bool:
        """See `Judge`; what is partially correct is not the same."""
        asked = _SAME_ANSWER.format(question=question, reference=reference, answer=answer)
        return await self._verdict(asked, yes="correct", no=("incorrect", "partially correct"))

    async def same_reason(self, *, task: str, reason: str, answer: str) -> bool:
        """See `Judge`."""
        asked = _SAME_REASON.format(task=task, reason=reason, answer=answer)
        return await self._verdict(asked, yes="same", no=("different",))

    async def _verdict(self, asked: str, *, yes: str, no: tuple[str, ...]) -> bool:
        said = ""
        for _ in range(TRIES):
            said = (await self._ask(asked)).strip().lower()
            last = said.splitlines()[-1] if said else ""
            if any(word in last for word in no):
                return False
            if yes in last:
                return True
        raise EnvCrashed(f"the judge {self.model} gives no verdict: {said[-80:]!r}")

    async def _ask(self, text: str) -> str:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": 768,
        }
        register_secret(self.key)
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            async with httpx.AsyncClient(timeout=ANSWER_S, trust_env=False) as client:
                answer = await client.post(f"{self.url}/chat/completions", json=body, headers=headers)
                answer.raise_for_status()
                return str(answer.json()["choices"][0]["message"]["content"] or "")
        except (httpx.HTTPError, KeyError, IndexError, ValueError) as error:
            raise EnvCrashed(
                f"the judge at {self.url} does not answer: {type(error).__name__}: {error}"
            ) from error


def judge_of_environment() -> ModelJudge | None:
    """The one that the environment names; None if there is none."""
    url = os.environ.get("WEBARENA_JUDGE_URL", "")
    model = os.environ.get("WEBARENA_JUDGE_MODEL", "")
    if not url or not model or is_left_out():
        return None
    return ModelJudge(url.rstrip("/"), model, os.environ.get("WEBARENA_JUDGE_KEY", ""))


def is_left_out() -> bool:
    """Whether the tasks that need a judge are to be left out."""
    return os.environ.get("WEBARENA_JUDGE_URL", "").lower() == NONE


class JudgeNamed:
    """The judge, as a requirement."""

    name = "a judge of answers"

    def find_remedy(self) -> str | None:
        """See `Requirement`."""
        if is_left_out() or judge_of_environment() is not None:
            return None
        return (
            "export WEBARENA_JUDGE_URL=https://…/v1 WEBARENA_JUDGE_MODEL=…, or WEBARENA_JUDGE_URL=none to "
            "leave out the 118 tasks that need one"
        )


JUDGE_NAMED = JudgeNamed()
