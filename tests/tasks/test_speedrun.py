"""The energy of `bench/speedrun.py`, of a tree as Linux has it."""

from pathlib import Path

from bench.speedrun import joules_between, read_energy


def write_zone(folder: Path, *, name: str, microjoules: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text("10000000\n")


def test_energy_is_that_of_the_packages_alone(tmp_path: Path) -> None:
    zones = {"0": "package-0", "0:0": "core", "1": "package-1", "2": "psys"}
    for number, name in zones.items():
        write_zone(tmp_path / f"intel-rapl:{number}", name=name, microjoules=9_000_000)
    before = read_energy(tmp_path)
    write_zone(tmp_path / "intel-rapl:0", name="package-0", microjoules=9_500_000)
    write_zone(tmp_path / "intel-rapl:1", name="package-1", microjoules=1_000_000)  # it began at 0 again
    for number in ("0:0", "2"):
        write_zone(tmp_path / f"intel-rapl:{number}", name=zones[number], microjoules=9_900_000)
    assert joules_between(before, read_energy(tmp_path)) == 0.5 + 2.0


def test_a_machine_without_counters_has_no_energy(tmp_path: Path) -> None:
    assert joules_between(read_energy(tmp_path), read_energy(tmp_path)) is None
