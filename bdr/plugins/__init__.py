"""Plug-ins: what can stand around any method's classification loss, and the table of them."""

from bdr.plugins.aanet import AANet
from bdr.plugins.base import Plugin, Prior, compose
from bdr.plugins.bdr import BDRPlugin
from bdr.plugins.cwd import CwD
from bdr.plugins.focal import Focal
from bdr.plugins.la import LogitAdjustment
from bdr.plugins.ldam import LDAM
from bdr.plugins.mixup import Mixup
from bdr.plugins.resample import Resampling
from bdr.plugins.reweight import Reweighting
from bdr.plugins.tade import TADE

PLUGINS: dict[str, type[Plugin]] = {
    "aanet": AANet,
    "balanced-softmax": LogitAdjustment,  # Ren et al., NeurIPS 2020: the same loss
    "bdr": BDRPlugin,
    "cwd": CwD,
    "focal": Focal,
    "la": LogitAdjustment,
    "ldam": LDAM,
    "mixup": Mixup,
    "resample": Resampling,
    "reweight": Reweighting,
    "tade": TADE,
}

__all__ = [
    "LDAM",
    "PLUGINS",
    "TADE",
    "AANet",
    "BDRPlugin",
    "CwD",
    "Focal",
    "LogitAdjustment",
    "Mixup",
    "Plugin",
    "Prior",
    "Resampling",
    "Reweighting",
    "compose",
]
