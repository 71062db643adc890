"""Networks: the table of backbones by name."""

from collections.abc import Callable

from bdr.nets.base import Backbone, Features, Frozen, Head, MakeNetwork, Network, Resumable, Teacher
from bdr.nets.dytox import convit, convit_small
from bdr.nets.heads import CosineHead, LinearHead
from bdr.nets.proxies import ProxyHead
from bdr.nets.resnet_cifar import resnet18, resnet18_der, resnet32
from bdr.nets.small import small
from bdr.nets.tokens import TokenHeads

NETS: dict[str, Callable[..., Backbone]] = {
    "convit": convit,
    "convit-small": convit_small,
    "resnet18": resnet18,
    "resnet18-der": resnet18_der,
    "resnet32": resnet32,
    "small": small,
}

__all__ = [
    "NETS",
    "Backbone",
    "CosineHead",
    "Features",
    "Frozen",
    "Head",
    "LinearHead",
    "MakeNetwork",
    "Network",
    "ProxyHead",
    "Resumable",
    "Teacher",
    "TokenHeads",
]
