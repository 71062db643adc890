"""Plug-ins: what can stand around any method's classification loss, and the table of them."""

from bdr.plugins.aanet import AANet
from bdr.plugins.base import Plugin, Prior, compose
from bdr.plugins.bdr import BDRPlugin
from bdr.plugins.cwd import CwD
from bdr.plugins.la import LogitAdjustment
from bdr.plugins.mixup import Mixup
from bdr.plugins.tade import TADE

PLUGINS: dict[str, type[Plugin]] = {
    "aanet": AANet,
    "bdr": BDRPlugin,
    "cwd": CwD,
    "la": LogitAdjustment,
    "mixup": Mixup,
    "tade": TADE,
}

__all__ = ["PLUGINS", "TADE", "AANet", "BDRPlugin", "CwD", "LogitAdjustment", "Mixup", "Plugin", "Prior", "compose"]
