"""Algorithms that estimate advantages, by what a pipeline would say."""

from typing import Any

from tasks.algorithms.algorithm import OnlineAlgorithm
from tasks.algorithms.registry import parse_algorithm


def parse_online(value: Any) -> OnlineAlgorithm:
    algorithm = parse_algorithm(value)
    assert isinstance(algorithm, OnlineAlgorithm)
    return algorithm
