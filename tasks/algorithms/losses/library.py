"""All policy losses, as the type of an algorithm's `loss`."""

from typing import Annotated

from pydantic import Field

from tasks.algorithms.losses.cispo import CispoLoss
from tasks.algorithms.losses.covariance import ClipCov, KlCov
from tasks.algorithms.losses.dppo import DppoKl, DppoTv
from tasks.algorithms.losses.dro import Dro
from tasks.algorithms.losses.geo_mean import GeoMean
from tasks.algorithms.losses.gpg import GpgLoss
from tasks.algorithms.losses.gspo import GspoLoss
from tasks.algorithms.losses.sapo import SapoLoss
from tasks.algorithms.losses.vanilla import Vanilla

AnyLoss = Annotated[
    Vanilla | GspoLoss | GeoMean | CispoLoss | SapoLoss | DppoTv | DppoKl | ClipCov | KlCov | GpgLoss | Dro,
    Field(discriminator="name"),
]
