"""Records of evaluations from tables of outcomes."""

from tasks.evaluation.record import EvaluationRecord, ItemOutcome, Sampling
from tasks.evaluation.summary import results_of


def record_of(
    table: list[list[int]], *, samples: int = 2, max_turns: int = 5, md5: str = "items", name: str = "policy"
) -> EvaluationRecord:
    """An evaluation with the successes of `table`, by item."""
    outcomes = [
        ItemOutcome(
            item=f"toy_{index}",
            env="toy",
            metadata={},
            max_turns=max_turns,
            successes=[bool(ok) for ok in row],
            rewards=[float(ok) for ok in row],
            turns=[2] * len(row),
            failures={},
        )
        for index, row in enumerate(table)
    ]
    return EvaluationRecord(
        policy={"name": name},
        split="test",
        split_seed=0,
        seed=0,
        sampling=Sampling(
            samples=samples, temperature=1.0, top_p=1.0, top_k=0, max_tokens_per_turn=8, context_length=64
        ),
        pipeline=None,
        settings={"agent": {"format": name}},
        items_md5=md5,
        provenance={},
        seconds=1.0,
        outcomes=outcomes,
        results=results_of(outcomes, samples=samples, ks=[2]),
    )


FIRST = [[0, 0], [0, 1], [1, 1], [0, 0], [1, 0], [1, 1]]
