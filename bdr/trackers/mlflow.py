"""MLflow: a run in the store that MLFLOW_TRACKING_URI names, or in MLflow's own default."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nobody asked for it; read when mlflow is imported
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "4")  # half a minute; the default of 7 takes four

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from bdr.records import Run
from bdr.trackers.base import Tracker
from bdr.trackers.points import Point, hyperparameters, identity, name_of, tags

EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"  # the environment variable of MLflow
MOST = 1000  # metrics that MLflow takes at once
MOST_SETTINGS, LONGEST = 100, 500  # parameters at once, characters of one


class MLflow(Tracker):
    """Continues the MLflow run of the same identity, without the points that it has: MLflow would keep both."""

    def __init__(self, run: Run) -> None:
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)  # they report every table that they make
        self.client = MlflowClient()
        place = self.experiment(os.environ.get(EXPERIMENT) or "bdr")
        found = self.client.search_runs([place], f"tags.`bdr.id` = '{identity(run)}'")
        self.id = found[0].info.run_id if found else self.begin(run, place)
        self.client.update_run(self.id, status="RUNNING")
        keys = found[0].data.metrics if found else ()
        self.there = {(key, metric.step) for key in keys for metric in self.client.get_metric_history(self.id, key)}

    def experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        return found.experiment_id if found else self.client.create_experiment(name)

    def begin(self, run: Run, place: str) -> str:
        made = self.client.create_run(place, run_name=name_of(run), tags={"bdr.id": identity(run)}).info.run_id
        told = [RunTag(f"bdr.{name}", value) for name, value in tags(run).items()]
        settings = [Param(name, str(value)[:LONGEST]) for name, value in hyperparameters(run).items()]
        self.client.log_batch(made, tags=told)
        for first in range(0, len(settings), MOST_SETTINGS):
            self.client.log_batch(made, params=settings[first : first + MOST_SETTINGS])
        return made

    def add(self, points: Sequence[Point]) -> None:
        now = int(time.time() * 1000)
        metrics = [
            Metric(name, value, now, step)
            for step, values in points
            for name, value in values.items()
            if (name, step) not in self.there
        ]
        for first in range(0, len(metrics), MOST):
            self.client.log_batch(self.id, metrics=metrics[first : first + MOST])

    def close(self, done: bool) -> None:
        self.client.set_terminated(self.id, "FINISHED" if done else "KILLED")
