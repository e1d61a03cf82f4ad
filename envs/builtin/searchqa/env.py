"""SearchQA as Search-R1 and AgentGym play it: a question, searches, one answer.

A turn is any text with `<search>query</search>` or `<answer>answer</answer>`; of several the first decides,
and of several answers the last is scored, as in the references. A search is told as
`<information>…</information>`. An answer ends the episode: reward 1 for exact match after SQuAD's
normalisation, else 0, with `exact_match` and `f1` as metrics. (AgentGym lets a policy answer again after a
wrong answer; Search-R1 does not, nor do we.)
"""

from collections.abc import Callable

from envs.builtin.searchqa.questions import Question
from envs.builtin.searchqa.scoring import compare
from envs.retrieval.types import MAX_QUERY, Retriever, information
from envs.types import Item, StepResult

INSTRUCTIONS = """\
You are asked a question. Reason inside <think> and </think> whenever you have learnt something new. If \
you lack knowledge, search for it by <search>your query</search>, and stop: what was found comes between \
<information> and </information>. You may search several times. When you know the answer, give it inside \
<answer> and </answer>, in a few words and without an explanation, for example <answer>Beijing</answer>."""

INVALID = (
    "That is no valid action. To search, write your query between <search> and </search>. To answer, "
    "write the answer between <answer> and </answer>. Try again."
)


class SearchQAEnv:
    """One question at a time; the retriever is shared by all instances."""

    def __init__(
        self, ask: Callable[[Item], Question], retriever: Callable[[], Retriever], *, top_k: int
    ) -> None:
        """`ask` and `retriever` are called when they are first needed; `top_k` passages are shown a
        search."""
        self._ask = ask
        self._make_retriever = retriever
        self._top_k = top_k
        self._question: Question | None = None

    @property
    def retriever(self) -> Retriever:
        """For a tool that searches in the place of an action (`agents/tools/search.py`)."""
        return self._make_retriever()

    async def reset(self, item: Item) -> str:
        """Ask the item's question."""
        self._question = self._ask(item)
        return f"Question: {self._question.question}"

    async def step(self, action: str) -> StepResult:
        """Search or answer; anything else is told the form."""
        question = self._question
        if question is None:
            raise RuntimeError("step before reset, or after the end")
        match said(action):
            case ("search", query):
                found = await self.retriever.search([query[:MAX_QUERY]], top_k=self._top_k)
                return StepResult(information(found[0]))
            case ("answer", answer):
                self._question = None
                match = compare(answer, question.answers)
                return StepResult(
                    "That is right." if match.exact else "That is wrong.",
                    match.exact,
                    terminated=True,
                    success=match.exact == 1.0,
                    metrics={"exact_match": match.exact, "f1": match.f1},
                )
        return StepResult(INVALID)

    async def close(self) -> None:
        """Forget the question; the retriever stays for the others."""
        self._question = None


def said(text: str) -> tuple[str, str] | None:
    """`("search", query)` or `("answer", answer)`: what the first pair of tags is, the content of the last
    such pair where it is an answer; None where there is neither. Linear in the text's length."""
    first = {tag: found for tag in ("search", "answer") if (found := _pair(text, tag, start=0))}
    if not first:
        return None
    tag = min(first, key=lambda tag: first[tag][0])
    found = first[tag]
    while tag == "answer" and (later := _pair(text, tag, start=found[1])):
        found = later
    return tag, found[2]


def _pair(text: str, tag: str, *, start: int) -> tuple[int, int, str] | None:
    """(begin, end, content) of the first pair of tags from `start` on."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    begin = text.find(opening, start)
    close = text.find(closing, begin + len(opening)) if begin >= 0 else -1
    if close < 0:
        return None
    return begin, close + len(closing), text[begin + len(opening) : close].strip()
