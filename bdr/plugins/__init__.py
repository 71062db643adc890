"""Plug-ins: what can stand around any method's classification loss, and the table of them."""

from bdr.plugins.aanet import AANet
from bdr.plugins.balanced_contrastive import BalancedContrast
from bdr.plugins.base import Plugin, Prior, compose
from bdr.plugins.bcl import BoostedContrast
from bdr.plugins.bdr import BDRPlugin
from bdr.plugins.cwd import CwD
from bdr.plugins.focal import Focal
from bdr.plugins.la import LogitAdjustment
from bdr.plugins.ldam import LDAM
from bdr.plugins.mixup import Mixup
from bdr.plugins.paco import PaCo
from bdr.plugins.resample import Resampling
from bdr.plugins.reweight import Reweighting
from bdr.plugins.tade import TADE

PLUGINS: dict[str, type[Plugin]] = {
    "aanet": AANet,
    "balanced-contrastive": BalancedContrast,
    "balanced-softmax": LogitAdjustment,
    "bcl": BoostedContrast,
    "bdr": BDRPlugin,
    "cwd": CwD,
    "focal": Focal,
    "la": LogitAdjustment,
    "ldam": LDAM,
    "mixup": Mixup,
    "paco": PaCo,
    "resample": Resampling,
    "reweight": Reweighting,
    "tade": TADE,
}

# Descriptions of second names: the file of a plug-in describes it under its first name.
ALIASES = {"balanced-softmax": "Another name of la: balanced softmax (Ren et al., NeurIPS 2020) is the same loss."}

__all__ = [
    "ALIASES",
    "LDAM",
    "PLUGINS",
    "TADE",
    "AANet",
    "BDRPlugin",
    "BalancedContrast",
    "BoostedContrast",
    "CwD",
    "Focal",
    "LogitAdjustment",
    "Mixup",
    "PaCo",
    "Plugin",
    "Prior",
    "Resampling",
    "Reweighting",
    "compose",
]
