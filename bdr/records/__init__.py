"""The run directory: JSON lines that only grow, and arrays. Reading it needs no torch.

run.json                  what was run: title, seed, fingerprint, protocol, config, settings, code, versions, device,
                          command, and the planned work: for every stage of every phase, its images an epoch, how
                          they are drawn, how many further views each has, and how many epochs there are
phases.jsonl epochs.jsonl one line for each phase, one line for each epoch
steps.bin                 in an unfinished run: float32 rows (phase, stage, ce_old, distillation), NaN for no value
steps.npz                 in a finished run: "phase-01/ce_old", "phase-01/distillation", "phase-01/stage"
analysis.bin analysis.npz the same with --analyse: (phase, gradient_old, gradient_new, ce_new), of first stages
phase-03/predictions.npz  labels; per readout NAME: NAME_ids (N, 5) best first, NAME_probabilities (N, 5) x 255 as uint8
phase-03/predictions-val.npz  the same for the split "val"
phase-03/memory.json      the exemplars, by class
phase-03/exemplars.json   last phase only: how exemplars and test images are recognised in a data set that has grown
phase-03/model/           the trained module: tensors.safetensors, info.json, sums.json
phase-03/snapshots.npz    with --analyse: start_, peak_, end_ features (N, D <= 50) and step; labels, exemplar, classes
log.txt  DONE
training.lock             names the process that is training, or that was killed while it did
"""

from __future__ import annotations

from bdr.records.code import other_code, other_library
from bdr.records.extends import Extends
from bdr.records.files import write_atomically
from bdr.records.folders import is_begun, is_done, run_folders
from bdr.records.models import kept_phase, model_checksum, model_folder
from bdr.records.place import check_place
from bdr.records.reader import (
    OF_A_FILE,
    OF_A_METHOD,
    Run,
    differences,
    find_runs,
    open_for_report,
    open_uncut,
    open_whole,
)
from bdr.records.readouts import far_better, small_scale
from bdr.records.work import Work, epochs_of, work_of
from bdr.records.writer import RunWriter

__all__ = [
    "OF_A_FILE",
    "OF_A_METHOD",
    "Extends",
    "Run",
    "RunWriter",
    "Work",
    "check_place",
    "differences",
    "epochs_of",
    "far_better",
    "find_runs",
    "is_begun",
    "is_done",
    "kept_phase",
    "model_checksum",
    "model_folder",
    "open_for_report",
    "open_uncut",
    "open_whole",
    "other_code",
    "other_library",
    "run_folders",
    "small_scale",
    "work_of",
    "write_atomically",
]
