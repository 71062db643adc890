"""TensorBoard: event files in the run's own folder, so that `tensorboard --logdir runs` shows every run."""

from __future__ import annotations

from collections.abc import Sequence

import yaml
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from bdr.records import Run
from bdr.trackers.base import Tracker
from bdr.trackers.points import Point, hyperparameters, tags

METRICS = ("accuracy", "average")


class TensorBoard(Tracker):
    """Always writes the whole log: event files only grow, but a resumed run drops what came after its checkpoint."""

    def __init__(self, run: Run) -> None:
        folder = run.path / "tensorboard"
        for file in folder.glob("events.out.tfevents.*"):
            file.unlink()
        self.writer = SummaryWriter(str(folder), purge_step=0)  # for a TensorBoard that has the old ones in memory
        self.describe(run)

    def describe(self, run: Run) -> None:
        settings = {k: v if isinstance(v, bool | int | float) else str(v) for k, v in hyperparameters(run).items()}
        metrics = {f"{name}/{run.readout}": 0.0 for name in METRICS}  # only the names count; the values are the scalars
        *begin, self.ended = hparams(tags(run) | settings, metrics)
        for summary in begin:
            self.writer._get_file_writer().add_summary(summary)  # add_hparams would make a folder of its own
        about = tags(run) | {"command": run.info.get("command", "")}
        self.writer.add_text("run", "\n".join(f"- {name}: `{value}`" for name, value in about.items()))
        config = yaml.safe_dump(run.info.get("config") or run.protocol, sort_keys=False)
        self.writer.add_text("config", f"```yaml\n{config}```")

    def add(self, points: Sequence[Point]) -> None:
        for step, values in points:
            for name, value in values.items():
                self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, done: bool) -> None:
        if done:
            self.writer._get_file_writer().add_summary(self.ended)
        self.writer.close()
