"""Describes the CPU as one of verl's platforms: the names and numbers that verl asks for."""

import types
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch
from verl.plugin.platform.platform_base import PlatformBase


class _CpuDevice(types.ModuleType):
    """Stands in for `torch.cuda`: the functions that verl calls where there is no accelerator."""

    def __init__(self) -> None:
        super().__init__("wingspan_cpu_device")

    def is_available(self) -> bool:
        # "Is there an accelerator?": if so, verl frees caches and reads device memory.
        return False

    def device_count(self) -> int:
        return 1

    def set_device(self, index: int) -> None: ...

    def empty_cache(self) -> None: ...

    def ipc_collect(self) -> None: ...

    def synchronize(self, *device: object) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def memory_allocated(self, *device: object) -> int:
        return int(psutil.Process().memory_info().rss)

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def reset_peak_memory_stats(self, *device: object) -> None: ...

    def mem_get_info(self, *device: object) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def get_device_name(self, *device: object) -> str:
        return "CPU"

    def get_rng_state(self, *device: object) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *device: object) -> None:
        torch.set_rng_state(state)


_DEVICE = _CpuDevice()


class PlatformCpu(PlatformBase):  # type: ignore[misc]
    """A CPU as verl sees it; registered only if `VERL_PLATFORM=cpu`."""

    device_name = "cpu"
    vendor_name = "generic"
    device_module = _DEVICE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        # Probing must not find it: every CPU-only process of a GPU cluster would match.
        return False

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        # verl's resource pool counts only GPUs and NPUs: Ray is given logical GPUs, one per worker.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
