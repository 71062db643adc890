"""Make the model of a run ready to hand out: for inference alone, with what is known of its images and classes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bdr.errors import UsageError
from bdr.methods import Method
from bdr.records import Run
from bdr.types import ImageShape


def handed_out(method: Method, run: Run, phase: int) -> Method:
    """Make a method, with the weights after a phase, ready for inference on images of the size it was trained on."""
    for name in reversed(method.parts_for_training()):  # inner parts before those that hold them
        parent, _, own = name.rpartition(".")
        setattr(method.get_submodule(parent), own, None)
    image = ImageShape(*run.info["image"])
    method.net.register_forward_pre_hook(partial(refuse_other_images, image))
    mean, std = run.normalisation
    names = tuple(run.info["classes"][: run.phases[phase]["seen"]])
    for fact, value in {"classes": names, "image": image, "mean": mean, "std": std}.items():
        if not hasattr(method, fact):  # the user's own method may have something by that name
            setattr(method, fact, value)
    return method.eval()


def refuse_other_images(image: ImageShape, net: nn.Module, given: tuple[Any, ...]) -> None:
    """Refuse images of another type or shape than the model was trained on.

    A network that pools would score images of any size, and nobody would see that it was not trained for them. About
    numbers of another type, torch would complain in words of its own.
    """
    x: Tensor = given[0]
    if x.dtype not in (torch.float32, next(net.parameters()).dtype):
        raise UsageError(
            f"images are {x.dtype} here, and the model takes pixels from 0 to 1, minus its mean, over its std, as "
            "torch.float32: (pixels / 255 - mean) / std; a model that takes pixels from 0 to 255 is what "
            "bdr.export(RUN, 'model.pt2') writes"
        )
    if tuple(x.shape[1:]) != image:
        said = " x ".join(map(str, x.shape))
        raise UsageError(
            f"images are {said} here, and the model takes N x {' x '.join(map(str, image))} (number x channels x "
            "height x width): scale them to that size"
        )
