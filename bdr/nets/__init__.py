"""Networks: the table of backbones by name."""

from bdr.nets.base import Backbone, Features, Frozen, Head, MakeNetwork, Network, Resumable, Teacher
from bdr.nets.expandable import Expandable
from bdr.nets.heads import CosineHead, LinearHead
from bdr.nets.proxies import ProxyHead
from bdr.nets.resnet_cifar import resnet18, resnet18_der, resnet32
from bdr.nets.small import small

NETS = {
    "resnet18": resnet18,
    "resnet18-der": resnet18_der,
    "resnet32": resnet32,
    "small": small,
}

__all__ = [
    "NETS",
    "Backbone",
    "CosineHead",
    "Expandable",
    "Features",
    "Frozen",
    "Head",
    "LinearHead",
    "MakeNetwork",
    "Network",
    "ProxyHead",
    "Resumable",
    "Teacher",
]
