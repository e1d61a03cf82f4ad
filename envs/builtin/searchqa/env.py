"""SearchQA as in Search-R1 and AgentGym: a question, searches, one answer.

A turn is any text with `<search>query</search>` or `<answer>answer</answer>`. As in the references, the first
pair of tags decides, and the last of several answers is scored. Search results come in
`<information>…</information>`. An answer ends the episode: the reward is 1 for an exact match after SQuAD's
normalization, else 0, with `exact_match` and `f1` as metrics. (AgentGym lets a policy answer again after a
wrong answer; Search-R1 does not, nor do we.)
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from envs.builtin.searchqa.questions import Question
from envs.builtin.searchqa.scoring import compare
from envs.retrieval.types import MAX_QUERY, Retriever, information
from envs.types import Item, StepResult

INSTRUCTIONS = """\
You are asked a question. Reason whenever you have learnt something new. If you lack knowledge, search for \
it by <search>your query</search>: what was found comes between <information> and </information>. You may \
search several times. When you know the answer, give it inside <answer> and </answer>, in a few words and \
without an explanation, for example <answer>Beijing</answer>."""

INVALID = (
    "That is no valid action. To search, write your query between <search> and </search>. To answer, "
    "write the answer between <answer> and </answer>. Try again."
)


@dataclass(eq=False)
class SearchQAEnv:
    """One question at a time; the retriever is shared by all instances."""

    ask: Callable[[Item], Question]
    get_retriever: Callable[[], Retriever]
    top_k: int
    """Passages that a search shows."""
    _question: Question | None = field(default=None, init=False)

    @property
    def retriever(self) -> Retriever:
        """The retriever, for a tool that searches instead of an action (`agents/tools/search.py`)."""
        return self.get_retriever()

    async def reset(self, item: Item) -> str:
        """Ask the item's question."""
        self._question = self.ask(item)
        return f"Question: {self._question.question}"

    async def step(self, action: str) -> StepResult:
        """Search or answer; any other text gets an observation that states the two forms."""
        question = self._question
        if question is None:
            raise RuntimeError("step before reset, or after the end")
        match parse_turn(action):
            case ("search", query):
                results = await self.retriever.search([query[:MAX_QUERY]], top_k=self.top_k)
                return StepResult(information(results[0]))
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
        """Forget the question; the retriever stays open for other instances."""
        self._question = None


def parse_turn(text: str) -> tuple[str, str] | None:
    """`("search", query)` or `("answer", answer)` by the first pair of tags, with the last of several
    answers; None if there is no pair. Linear in the text's length."""
    first = {tag: pair for tag in ("search", "answer") if (pair := _find_pair(text, tag, start=0))}
    if not first:
        return None
    tag = min(first, key=lambda tag: first[tag][0])
    pair = first[tag]
    while tag == "answer" and (later := _find_pair(text, tag, start=pair[1])):
        pair = later
    return tag, pair[2]


def _find_pair(text: str, tag: str, *, start: int) -> tuple[int, int, str] | None:
    """(begin, end, content) of the first pair of tags at or after `start`."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    begin = text.find(opening, start)
    close = text.find(closing, begin + len(opening)) if begin >= 0 else -1
    if close < 0:
        return None
    return begin, close + len(closing), text[begin + len(opening) : close].strip()
