"""All policy losses, as the type of an algorithm's `loss`."""

from typing import Annotated

from pydantic import Field

from tasks.algorithms.losses.cispo import Cispo
from tasks.algorithms.losses.covariance import ClipCov, KlCov
from tasks.algorithms.losses.dppo import DppoKl, DppoTv
from tasks.algorithms.losses.dro import Dro
from tasks.algorithms.losses.geo_mean import GeoMean
from tasks.algorithms.losses.gpg import Gpg
from tasks.algorithms.losses.gspo import Gspo
from tasks.algorithms.losses.sapo import Sapo
from tasks.algorithms.losses.vanilla import Vanilla

AnyLoss = Annotated[
    Vanilla | Gspo | GeoMean | Cispo | Sapo | DppoTv | DppoKl | ClipCov | KlCov | Gpg | Dro,
    Field(discriminator="name"),
]
