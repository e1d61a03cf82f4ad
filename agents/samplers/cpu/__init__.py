"""The CPU engine: a small Llama or Qwen2 sampled with continuous batching, compiled by numba.

`CpuSampler` is the only way in; it implements `agents.samplers.sampler.Sampler`. The other modules of this
package are private to it (import-linter checks that). Why the engine exists, and when to delete it:
`docs/decisions/0008-cpu-engine.md`.
"""

from agents.samplers.cpu.sampler import CpuSampler, is_supported

__all__ = ["CpuSampler", "is_supported"]
