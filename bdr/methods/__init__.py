"""Methods: a file a paper, and the table of them."""

from bdr.methods.base import Method
from bdr.methods.bic import BiC
from bdr.methods.der import DER
from bdr.methods.dualprompt import DualPrompt
from bdr.methods.dytox import DyTox
from bdr.methods.e2e import E2E
from bdr.methods.ewc import EWC
from bdr.methods.icarl import ICaRL
from bdr.methods.l2p import L2P
from bdr.methods.lwf import LwF
from bdr.methods.plain import Finetune, Joint, Replay
from bdr.methods.podnet import PODNet
from bdr.methods.rpsnet import RPSNet
from bdr.methods.rwalk import RWalk
from bdr.methods.si import SI
from bdr.methods.simple_der import SimpleDER
from bdr.methods.ucir import UCIR
from bdr.methods.wa import WA

METHODS: dict[str, type[Method]] = {
    "bic": BiC,
    "der": DER,
    "dualprompt": DualPrompt,
    "dytox": DyTox,
    "e2e": E2E,
    "ewc": EWC,
    "finetune": Finetune,
    "icarl": ICaRL,
    "joint": Joint,
    "l2p": L2P,
    "lwf": LwF,
    "podnet": PODNet,
    "replay": Replay,
    "rpsnet": RPSNet,
    "rwalk": RWalk,
    "si": SI,
    "simple-der": SimpleDER,
    "ucir": UCIR,
    "wa": WA,
}

__all__ = [
    "DER",
    "E2E",
    "EWC",
    "L2P",
    "METHODS",
    "SI",
    "UCIR",
    "WA",
    "BiC",
    "DualPrompt",
    "DyTox",
    "Finetune",
    "ICaRL",
    "Joint",
    "LwF",
    "Method",
    "PODNet",
    "RPSNet",
    "RWalk",
    "Replay",
    "SimpleDER",
]
