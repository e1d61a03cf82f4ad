"""When rewards are equal: where they differ by no more than the rounding of their sums.

0.1 + 0.2 + 0.7 is not 1.0 in floating point, and a standard deviation that is only rounding would make an
advantage of it.
"""

import math
from collections.abc import Sequence

RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-9, 1e-12
"""The tolerances of `math.isclose`; the rounding of a sum of a thousand rewards is below both."""


def have_equal_rewards(rewards: Sequence[float]) -> bool:
    """Whether there is no difference among `rewards` but rounding; true for none."""
    return not rewards or math.isclose(
        min(rewards), max(rewards), rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE
    )
