"""Methods: a file a paper, and the table of them."""

from bdr.methods.base import Method
from bdr.methods.icarl import ICaRL
from bdr.methods.lwf import LwF
from bdr.methods.plain import Finetune, Joint, Replay
from bdr.methods.ucir import UCIR

METHODS: dict[str, type[Method]] = {
    "finetune": Finetune,
    "icarl": ICaRL,
    "joint": Joint,
    "lwf": LwF,
    "replay": Replay,
    "ucir": UCIR,
}

__all__ = ["METHODS", "UCIR", "Finetune", "ICaRL", "Joint", "LwF", "Method", "Replay"]
