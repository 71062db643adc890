"""Methods: a file a paper, and the table of them."""

from bdr.methods.base import Method
from bdr.methods.bic import BiC
from bdr.methods.dytox import DyTox
from bdr.methods.e2e import E2E
from bdr.methods.ewc import EWC
from bdr.methods.icarl import ICaRL
from bdr.methods.lwf import LwF
from bdr.methods.plain import Finetune, Joint, Replay
from bdr.methods.podnet import PODNet
from bdr.methods.rwalk import RWalk
from bdr.methods.si import SI
from bdr.methods.ucir import UCIR
from bdr.methods.wa import WA

METHODS: dict[str, type[Method]] = {
    "bic": BiC,
    "dytox": DyTox,
    "e2e": E2E,
    "ewc": EWC,
    "finetune": Finetune,
    "icarl": ICaRL,
    "joint": Joint,
    "lwf": LwF,
    "podnet": PODNet,
    "replay": Replay,
    "rwalk": RWalk,
    "si": SI,
    "ucir": UCIR,
    "wa": WA,
}

__all__ = [
    "E2E",
    "EWC",
    "METHODS",
    "SI",
    "UCIR",
    "WA",
    "BiC",
    "DyTox",
    "Finetune",
    "ICaRL",
    "Joint",
    "LwF",
    "Method",
    "PODNet",
    "RWalk",
    "Replay",
]
