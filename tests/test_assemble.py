"""A plan before it begins: the stages of every phase, and how many images will pass through them."""

from dataclasses import replace

import pytest
from runs import TwoStages, plan

from bdr import api
from bdr.errors import UsageError
from bdr.planning.checked import stages_of
from bdr.plugins import Plugin
from bdr.types import Phase, Stage

FLAT = {"net": "runs:flat"}


class Rarest(Plugin):
    """Every stage of a later phase draws the rarest."""

    role = "draw"

    def stages(self, phase, stages):
        return stages if phase.first else [replace(stage, draw="rarest") for stage in stages]


def test_the_stages_of_a_phase_are_the_methods_with_what_is_set_for_single_ones(tmp_path):
    settings = [("stage.epochs", 4), ("stage.balanced.epochs", 7), ("stage.balanced.lr", 0.5)]
    found = plan(tmp_path / "run", "runs:TwoStages", settings=settings, **FLAT)
    (first, second), *others = found.learner.stages
    assert len(found.learner.stages) == len(found.experiment.phases) == 3
    assert others == [[first, second]] * 2
    assert (first.name, first.epochs, first.draw) == ("main", 4, "all")
    assert (second.name, second.epochs, second.lr, second.draw, second.batch) == ("balanced", 7, 0.5, "memory", 5)
    assert second.train == ("net.head",)


def test_plug_ins_change_how_stages_draw(tmp_path):
    config, _ = api.configure("runs:TwoStages", "digits", [("stage.epochs", 2)], {"base": 4, "step": 3, **FLAT})
    method = plan(tmp_path / "run", "runs:TwoStages", **FLAT).experiment.method
    assert isinstance(method, TwoStages)
    draws = [[s.draw for s in stages_of(config, method, [Rarest()], p)[0]] for p in (Phase(0, 0, 4), Phase(1, 4, 7))]
    assert draws == [["all", "memory"], ["rarest", "rarest"]]


def test_a_plug_in_of_a_run_has_its_say_in_the_stages(tmp_path):
    found = plan(tmp_path / "run", "ucir+test_assemble:Rarest", **FLAT)
    assert [[stage.draw for stage in stages] for stages in found.learner.stages] == [["all"], ["rarest"], ["rarest"]]


def test_a_stage_that_settings_speak_of_and_no_phase_has_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no stage 'balance'; there are balanced, main"):
        plan(tmp_path / "run", "runs:TwoStages", settings=[("stage.balance.lr", 0.5)], **FLAT)


class Objectless(TwoStages):
    def stages(self, phase, base):
        return [replace(base, loss="missing")]


def test_a_stage_without_its_objective_is_told_to_who_wrote_the_method(tmp_path):
    said = (
        "stage 'main' of test_assemble:Objectless has loss='missing', .* write one, or name 'loss' or 'classification'"
    )
    with pytest.raises(UsageError, match=said):
        plan(tmp_path / "run", "test_assemble:Objectless", **FLAT)


@pytest.mark.parametrize(("memory", "each"), [("3/class", [3, 3, 3]), ("30", [30 // 4, 30 // 7, 3])])
def test_the_workload_is_the_images_of_every_stage_times_its_epochs(tmp_path, memory, each):
    settings = [("stage.balanced.epochs", 5)]
    found = plan(tmp_path / "run", "runs:TwoStages", memory=memory, settings=settings, **FLAT)
    labels = found.learner.train.labels
    new = [int(((labels >= p.old) & (labels < p.seen)).sum()) for p in found.experiment.phases]
    held = [0, *(each[p.index] * p.seen for p in found.experiment.phases)]
    assert [found.new_images(phase) for phase in found.experiment.phases] == new
    assert [found.exemplars(count) for count in (0, 4, 7, 10)] == held
    assert found.workload() == [[2 * (new[i] + held[i]), 5 * held[i + 1]] for i in range(3)]


@pytest.mark.parametrize(
    ("memory", "notes"),
    [
        ("20", ("memory 20 in total: 5 a class at first, 2 at the end; 5/class keeps 5 of each",)),
        ("49", ("memory 49 in total: 12 a class at first, 4 at the end; 5/class keeps 5 of each",)),
        *((memory, ()) for memory in ("50", "2/class", "0")),
    ],
)
def test_a_memory_in_total_of_which_little_is_left_of_each_class_is_said(tmp_path, memory, notes):
    assert plan(tmp_path / "run", "runs:TwoStages", memory=memory, **FLAT).notes == notes


def test_more_phases_than_there_are_is_said(tmp_path):
    (note,) = plan(tmp_path / "run", "runs:TwoStages", phases=9, **FLAT).notes
    assert note == "--phases 9 is more than there are: all 3 are run"


def test_a_run_of_one_phase_says_nothing_of_a_memory_that_shrinks_later(tmp_path):
    assert plan(tmp_path / "run", "runs:TwoStages", memory="20", phases=1, **FLAT).notes == ()


@pytest.mark.parametrize("memory", ["3/class", "40"])
@pytest.mark.parametrize("method", ["der", "bic", "runs:TwoStages"])
def test_the_images_of_a_stage_are_those_of_its_pool_also_when_the_memory_shrinks(method, memory, tmp_path):
    heard = {}

    class Hears(api.Listener):
        def epoch_ends(self, phase, stage, log):
            heard[phase, stage.name] = log.images

    whole = [("stage.batch", 10_000)]  # a pool smaller than a batch is its own batch
    whole += [("stage.balanced.batch", 10_000)] if method != "bic" else []
    found = plan(tmp_path / "run", method, memory=memory, settings=[("stage.epochs", 1), *whole], step=2)
    api.execute(found, Hears())
    pairs = zip(found.experiment.phases, found.learner.stages, strict=True)
    assert heard == {(phase, stage.name): found.drawn(phase, stage) for phase, stages in pairs for stage in stages}


def test_the_workload_is_what_the_epochs_train_on(tmp_path):
    heard, told = [], []

    class Hears(api.Listener):
        def run_begins(self, title, phases, place, work):
            told.append(work)

        def epoch_ends(self, phase, stage, log):
            heard.append((phase.index, stage.name, log.images))

    found = plan(tmp_path / "run", "runs:TwoStages", settings=[("stage.batch", 2)], **FLAT)
    api.execute(found, Hears())
    amounts = {(i, name): 0 for i in range(3) for name in ("main", "balanced")}
    for phase, name, images in heard:
        amounts[phase, name] += images
    for (phase, name), images in amounts.items():
        planned = found.workload()[phase][["main", "balanced"].index(name)]
        assert planned <= images < planned + 2 * 5  # the last batch of each of two epochs is filled
    assert told == [found.workload()]
    assert Stage() not in found.learner.stages[0]


def test_what_is_scaled_in_a_stage_that_a_method_declares_is_said(tmp_path):
    found = plan(tmp_path / "run", "der")
    assert found.notes == ()
    config, _ = api.configure("der", "cifar100", [("stage.epochs", 34), ("stage.balanced.epochs", 12)])
    stages, notes = stages_of(config, found.experiment.method, [], Phase(1, 50, 60))
    assert [stage.drops for stage in stages] == [(22, 26), (6,)]
    assert notes == ["balanced.drops scaled with the epochs: (3,) -> (6,)"]
