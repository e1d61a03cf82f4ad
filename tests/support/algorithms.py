"""Algorithms that estimate advantages, by what a pipeline would say."""

from tasks.algorithms.algorithm import OnlineAlgorithm
from tasks.algorithms.registry import parse_algorithm


def parse_online(value: object) -> OnlineAlgorithm:
    algorithm = parse_algorithm(value)
    assert isinstance(algorithm, OnlineAlgorithm)
    return algorithm
