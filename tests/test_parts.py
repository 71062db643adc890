"""From names to parts: what a part is handed is no setting of it, and everything else in its signature is."""

import re

import pytest
from runs import Flat, flat, plan
from torch import nn

from bdr.errors import UsageError
from bdr.methods import Method
from bdr.methods.icarl import ICaRL
from bdr.nets import Backbone, Features, LinearHead
from bdr.planning.parts import resolve
from bdr.plugins import Plugin

FLAT = {"net": "runs:flat"}


class Shaped(Plugin):
    """A plug-in whose settings are called what nets and methods are handed."""

    def __init__(self, shape: str = "round", maps: int = 1, make: str = "", last_relu: float = 0.0, alternate: int = 0):
        super().__init__()
        self.given = (shape, maps, make, last_relu, alternate)

    def report(self, phase, net):
        return {}


def deep(shape, last_relu: bool = True, depth: int = 1, width: int = 8):
    """A net with settings of its own."""
    backbone = Flat(64 * shape.channels, width)
    backbone.layers = depth
    return backbone


def bare(shape):
    """A net that takes no option."""
    return flat(shape)


class Deciding(Method):
    """It needs a net of two layers; what it is handed has a name of its own."""

    criterion = ICaRL.criterion

    def __init__(self, network, shape: int = 3):
        super().__init__()
        self.net, self.shape = network(LinearHead, depth=2), shape

    def loss(self, batch, phase, classify):
        out = self.net(batch.x)
        return {"ce": classify(out, batch.y).mean()}


class Unfinished(Method):
    """It has forgotten what it is for."""


class Needy(Plugin):
    """It has a setting without a default, and says of none what kind it is."""

    def __init__(self, strength):
        super().__init__()
        self.strength = strength

    def classify(self, inner, out, y):
        return self.strength * inner(out, y)


class NoSuper(Plugin):
    """It has forgotten where it comes from."""

    def __init__(self, factor: float = 2.0):
        self.factor = factor

    def classify(self, inner, out, y):
        return self.factor * inner(out, y)


class NoSuperEither(Method):
    """The same, and gives a module to what is none yet."""

    def __init__(self, make):
        self.net = make(LinearHead)

    def loss(self, batch, phase, classify):
        return {"ce": classify(self.net(batch.x), batch.y).mean()}


class Misspelt(Plugin):
    """It does nothing."""

    def clasify(self, inner, out, y):
        return 2 * inner(out, y)


class Idle(Plugin):
    """So does this one."""


class HalfMisspelt(Misspelt):
    """It does half of what is meant."""

    def stages(self, phase, stages):
        return stages


class MisspeltMethod(Deciding):
    """Of its own it has a helper that is called almost like one seam, and what was meant for another."""

    def loss(self, batch, phase, classify):
        return {name: self.weight() * term for name, term in super().loss(batch, phase, classify).items()}

    def weight(self):
        return 2

    def begin_stages(self, stage, phase, pool):
        pass


class Shapeless(Backbone):
    """So has this one."""


class Mute(Flat):
    """It says what torch modules say."""

    def __init__(self, shape, last_relu: bool = True):
        super().__init__(64 * shape.channels, 8)

    def forward(self, x):
        return super().forward(x).pooled


class Narrow(Mute):
    """It has other features than it says."""

    def forward(self, x):
        return Features(super().forward(x)[:, :5])


class Crash(Mute):
    """It is made for other images."""

    def forward(self, x):
        return Features(x.flatten(1) @ x.flatten(1))


class Sizeless(Backbone):
    """It does not say how many it has."""

    def __init__(self, shape, last_relu: bool = True):
        super().__init__()

    def forward(self, x):
        return Features(x.flatten(1))


class Stray(nn.Module):
    """It derives from torch alone."""


def sequence(shape, last_relu: bool = True):
    """What it makes does too."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8))


def absent(shape, last_relu: bool = True, weights: str = "nowhere.pt"):
    """Its weights are not there."""
    with open(weights, "rb"):
        return flat(shape)


NO_NETS = {
    "Stray": r"'test_parts:Stray' is not a net: .* does not derive from bdr.nets.Backbone; see docs/add-a-network.md$",
    "sequence": "'test_parts:sequence' made a Sequential, and not a bdr.nets.Backbone; see docs/add-a-network.md",
    "Sizeless": "Sizeless has no 'dim', the number of its features: set it in __init__; see ",
    "Mute": "Mute.forward returned a Tensor, and not bdr.nets.Features; see ",
    "Narrow": r"the features of Narrow are \(2, 5\), and its dim is 8: pool them to \(B, dim\); see ",
    "Crash": r"Crash.forward fails on images \(2, 1, 8, 8\), .*: RuntimeError in .*test_parts.py, line \d+: .*; see ",
    "absent": r"absent: .*No such file or directory: 'nowhere.pt'",
}


@pytest.mark.parametrize("name", NO_NETS)
def test_what_is_no_net_is_told_what_a_net_is(tmp_path, name):
    with pytest.raises(UsageError, match=NO_NETS[name]):
        made(tmp_path, "ucir", net=f"test_parts:{name}")


def made(tmp_path, what, *settings, **fields):
    return plan(tmp_path / "run", what, settings=settings, **(FLAT | fields)).learner


def test_a_plug_in_may_have_settings_that_are_called_what_others_are_handed(tmp_path):
    settings = {"shape": "square", "maps": 2, "make": "own", "last_relu": 0.5, "alternate": 7}
    found = made(tmp_path, "ucir+test_parts:Shaped", *((f"Shaped.{name}", each) for name, each in settings.items()))
    assert found.plugins[0].given == tuple(settings.values())


def test_a_method_may_call_what_it_is_handed_as_it_likes(tmp_path):
    found = made(tmp_path, "test_parts:Deciding", ("Deciding.shape", 5), net="test_parts:deep")
    assert found.method.shape == 5
    assert found.method.net.backbone.layers == 2


def test_what_a_method_is_handed_is_no_setting(tmp_path):
    with pytest.raises(UsageError, match="no setting of Deciding 'network'; there are shape"):
        made(tmp_path, "test_parts:Deciding", ("Deciding.network", 5), net="test_parts:deep")
    with pytest.raises(UsageError, match="no setting of ucir 'make'"):
        made(tmp_path, "ucir", ("ucir.make", 5))


def test_an_option_of_a_net_that_the_method_decides_is_refused_by_name(tmp_path):
    said = r"deep.depth = 3 is not allowed: test_parts:Deciding decides it \(depth=2\); leave it out"
    with pytest.raises(UsageError, match=said):
        made(tmp_path, "test_parts:Deciding", ("deep.depth", 3), net="test_parts:deep")
    assert made(tmp_path, "ucir", ("deep.depth", 3), net="test_parts:deep").method.net.backbone.layers == 3


@pytest.mark.parametrize(("what", "decided"), [("ucir", r" \(last_relu=False\)"), ("icarl", "")])
def test_what_every_net_is_handed_is_the_methods_to_decide(tmp_path, what, decided):
    with pytest.raises(UsageError, match=f"small.last_relu = True is not allowed: {what} decides it{decided}; leave"):
        made(tmp_path, what, ("small.last_relu", True), net="small")


def test_a_setting_that_a_net_lacks_is_told_those_that_it_has(tmp_path):
    with pytest.raises(UsageError, match="no setting of deep 'dept'; there are depth, width: did you mean 'depth'"):
        made(tmp_path, "icarl", ("deep.dept", 3), net="test_parts:deep")


def test_a_net_that_does_not_take_what_it_is_handed_says_so(tmp_path):
    said = (
        r"'test_parts:bare' cannot be made from \(ImageShape, last_relu=False\), .*'last_relu'; see docs/add-a-network"
    )
    with pytest.raises(UsageError, match=said):
        made(tmp_path, "ucir", net="test_parts:bare")


def test_a_setting_without_a_default_is_asked_for_by_name(tmp_path):
    said = "^Needy.strength has no default, and needs a value: type --set Needy.strength=VALUE$"
    with pytest.raises(UsageError, match=said):
        made(tmp_path, "ucir+test_parts:Needy")
    assert made(tmp_path, "ucir+test_parts:Needy", ("Needy.strength", 2)).plugins[0].strength == 2


def test_a_class_that_leaves_out_what_is_asked_of_it_is_told_what(tmp_path):
    said = r"Unfinished lacks loss\(batch, phase, classify\); see docs/add-a-method.md"
    with pytest.raises(UsageError, match=said):
        made(tmp_path, "test_parts:Unfinished")
    with pytest.raises(UsageError, match=r"Shapeless lacks forward\(x\); see docs/add-a-network.md"):
        made(tmp_path, "ucir", net="test_parts:Shapeless")


# Names of one's own code


@pytest.mark.parametrize(
    ("typed", "instead", "folder"),
    [
        ("./own.py:P", "own:P", "."),
        ("own.py:P", "own:P", "."),
        (".own:P", "own:P", "."),
        ("..own:P", "own:P", "."),
        ("pack.own.py:P", "pack.own:P", "."),
        ("code/own.py:P", "own:P", "code"),
        ("../own:P", "own:P", ".."),
        ("/code/own.py:P", "own:P", "/code"),
    ],
)
@pytest.mark.parametrize("kind", ["method", "plug-in", "net", "data set"])
def test_a_file_in_place_of_a_module_is_told_what_to_type(kind, typed, instead, folder):
    with pytest.raises(UsageError) as refused:
        resolve(kind, typed, {}, Plugin)
    assert str(refused.value) == (
        f"{kind} '{typed}' is not like package.module:Name: type {instead}, and PYTHONPATH={folder} before the command"
    )


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Writes a module that can be imported."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, text):
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        return file

    return write


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch\n\nP = torch.nope\n", "AttributeError in {}, line 3: module 'torch' has no attribute 'nope'"),
        ("from bdr.methods import Nope\n", "ImportError in {}, line 1: cannot import name 'Nope' from 'bdr.methods'"),
        ("import nowhere\n", "ModuleNotFoundError in {}, line 1: No module named 'nowhere'"),
        ("import json\n\njson.loads('')\n", "JSONDecodeError in {}, line 3: Expecting value"),
        ("x = 1\ndef f(:\n", "SyntaxError in {}, line 2: invalid syntax"),
    ],
)
def test_what_goes_wrong_inside_of_a_module_is_told_with_its_place(own_module, text, said):
    file = own_module("own_that_fails", text)
    with pytest.raises(UsageError) as refused:
        resolve("plug-in", "own_that_fails:P", {}, Plugin)
    assert str(refused.value).startswith(f"plug-in 'own_that_fails:P': {said.format(file)}")
    assert refused.value.__cause__ is not None  # Python shows the way there, too


def test_what_goes_wrong_in_a_module_that_a_module_imports_is_told_with_its_own_place(own_module):
    file = own_module("own_helper", "1 / 0\n")
    own_module("own_that_fails", "import own_helper\n")
    with pytest.raises(UsageError, match=f"ZeroDivisionError in {re.escape(str(file))}, line 1: division by zero"):
        resolve("method", "own_that_fails:P", {}, Method)


def test_a_misspelt_class_is_told_the_nearest_that_would_do():
    with pytest.raises(UsageError, match="test_parts has no Deciden: did you mean 'Deciding'"):
        resolve("method", "test_parts:Deciden", {}, Method)
    with pytest.raises(UsageError, match="test_parts has no Shapd: did you mean 'Shaped'"):
        resolve("plug-in", "test_parts:Shapd", {}, Plugin)
    with pytest.raises(UsageError, match=r"test_parts has no Pluggin$"):  # a base is there, and none of one's own
        resolve("plug-in", "test_parts:Pluggin", {}, Plugin)


@pytest.mark.parametrize("what", ["ucir+test_parts:NoSuper", "test_parts:NoSuperEither"])
def test_a_class_that_does_not_call_its_base_is_told_to(tmp_path, what):
    with pytest.raises(UsageError, match=rf"^{what.rpartition(':')[2]}: call super\(\).__init__\(\) first in __init__"):
        made(tmp_path, what)


def test_a_plug_in_that_does_nothing_is_refused_with_the_seam_that_it_may_have_meant(tmp_path):
    said = "has no member of bdr.Plugin of its own, such as classify, and would do nothing"
    with pytest.raises(UsageError, match=f"'test_parts:Misspelt' {said}; clasify: did you mean classify\\?"):
        made(tmp_path, "ucir+test_parts:Misspelt")
    with pytest.raises(UsageError, match=f"'test_parts:Idle' {said}: see docs/add-a-method.md"):
        made(tmp_path, "ucir+test_parts:Idle")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("ucir+test_parts:HalfMisspelt", r"bdr does not call; clasify: did you mean classify\?$"),
        ("test_parts:MisspeltMethod", r"bdr does not call; begin_stages: did you mean begin_stage\?$"),
    ],
)
def test_a_method_that_has_almost_the_name_of_a_seam_and_its_arguments_is_warned_of(tmp_path, what, said):
    with pytest.warns(UserWarning, match=said):
        made(tmp_path, what, net="test_parts:deep")
