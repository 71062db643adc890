"""Plug-ins: what can stand around any method's classification loss, and the table of them."""

from bdr.plugins.aanet import AANet
from bdr.plugins.balanced_contrastive import BalancedContrast
from bdr.plugins.base import Plugin, Prior, compose
from bdr.plugins.bcl import BoostedContrast
from bdr.plugins.bdr import BDRPlugin
from bdr.plugins.cwd import CwD
from bdr.plugins.la import LogitAdjustment
from bdr.plugins.mixup import Mixup
from bdr.plugins.paco import PaCo

PLUGINS: dict[str, type[Plugin]] = {
    "aanet": AANet,
    "balanced-contrastive": BalancedContrast,
    "bcl": BoostedContrast,
    "bdr": BDRPlugin,
    "cwd": CwD,
    "la": LogitAdjustment,
    "mixup": Mixup,
    "paco": PaCo,
}

__all__ = [
    "PLUGINS",
    "AANet",
    "BDRPlugin",
    "BalancedContrast",
    "BoostedContrast",
    "CwD",
    "LogitAdjustment",
    "Mixup",
    "PaCo",
    "Plugin",
    "Prior",
    "compose",
]
