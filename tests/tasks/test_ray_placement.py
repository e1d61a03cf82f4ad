"""Where training processes go on a cluster, by number, and addresses that are none."""

import itertools

import pytest

from envs.errors import ConfigError
from tasks.cluster import address as ray_address
from tasks.cluster.address import check_ray_address
from tasks.cluster.placement import Placement, placement


@pytest.mark.parametrize(
    ("workers", "tensor_parallel", "rooms", "nodes"),
    [
        (2, 1, [2, 2], 1),
        (2, 1, [1, 1], 2),
        (3, 1, [2, 2], None),
        (3, 1, [2, 2, 1], 3),
        (4, 1, [2, 3, 1], 2),
        (4, 2, [3, 3], 2),
        (4, 4, [2, 2], None),
        (2, 2, [1, 1], None),
        (6, 2, [2, 2, 2], 3),
        (1, 1, [], None),
        (1, 1, [0], None),
    ],
)
def test_workers_go_to_the_fewest_nodes_in_equal_numbers(
    workers: int, tensor_parallel: int, rooms: list[int], nodes: int | None
) -> None:
    expected_placement = nodes and Placement(nodes=nodes, workers_per_node=workers // nodes)
    for order in itertools.permutations(rooms):
        assert placement(workers, tensor_parallel=tensor_parallel, rooms=order) == expected_placement


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("127.0.0.1:1", "no Ray cluster answers"),
        ("no-such-host.invalid:6379", "no Ray cluster answers"),
        ("127.0.0.1", "is not HOST:PORT"),
        ("ray://127.0.0.1:10001", "is not HOST:PORT"),
        ("127.0.0.1:123456", "no Ray cluster answers"),
    ],
)
def test_an_address_without_a_cluster_is_refused_with_its_remedy(
    address: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=rf"^RAY_ADDRESS={address}:? {problem}.*; .*or unset it") as error:
        check_ray_address()
    assert "\n" not in str(error.value)


@pytest.mark.heavy
def test_what_answers_but_is_no_cluster_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(ray_address, "PROBE_TIMEOUT_S", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ConfigError, match="no Ray cluster answers"):
            check_ray_address()


def test_no_address_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "local"):
        monkeypatch.setenv("RAY_ADDRESS", value)
        check_ray_address()
