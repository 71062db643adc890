"""Networks: the table of backbones by name."""

from collections.abc import Callable

from bdr.nets.aanet import TwoBranches
from bdr.nets.base import (
    Backbone,
    Divisible,
    Features,
    Frozen,
    Head,
    Levelled,
    MakeNetwork,
    Network,
    Resumable,
    Teacher,
)
from bdr.nets.dytox import convit, convit_small
from bdr.nets.expandable import Expandable
from bdr.nets.experts import ExpertHeads, Experts
from bdr.nets.heads import CosineHead, LinearHead
from bdr.nets.proxies import ProxyHead
from bdr.nets.resnet_cifar import resnet18, resnet18_der, resnet32
from bdr.nets.rps import PathNet, rps, rps_small
from bdr.nets.small import small
from bdr.nets.tokens import TokenHeads
from bdr.nets.vit import VisionTransformer, vit_b16, vit_tiny

NETS: dict[str, Callable[..., Backbone]] = {
    "convit": convit,
    "convit-small": convit_small,
    "resnet18": resnet18,
    "resnet18-der": resnet18_der,
    "resnet32": resnet32,
    "rps": rps,
    "rps-small": rps_small,
    "small": small,
    "vit-b16": vit_b16,
    "vit-tiny": vit_tiny,
}

__all__ = [
    "NETS",
    "Backbone",
    "CosineHead",
    "Divisible",
    "Expandable",
    "ExpertHeads",
    "Experts",
    "Features",
    "Frozen",
    "Head",
    "Levelled",
    "LinearHead",
    "MakeNetwork",
    "Network",
    "PathNet",
    "ProxyHead",
    "Resumable",
    "Teacher",
    "TokenHeads",
    "TwoBranches",
    "VisionTransformer",
]
