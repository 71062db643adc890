"""Timings as a table and as JSON: speeds, and the ratios that matter."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from bdr.bench.cases import Timing


def speed_table(timings: Sequence[Timing], peak: float | None, about: str) -> Table:
    """A row a case; the share is of the bf16 peak that this device reached just before."""
    table = Table(title=f"Training steps, {about}", title_justify="left")
    for name in ("case", "engine", "phase", "images/s", "ms/step", "first step s", "memory GiB", "of peak"):
        words = name in ("case", "engine", "phase")
        table.add_column(name, justify="left" if words else "right", min_width=0 if words else len(name.split()[0]))
    for each in timings:
        memory = "-" if each.memory_gib is None else f"{each.memory_gib:.2f}"
        share = f"{100 * each.teraflops / peak:.1f} %" if peak and each.teraflops else "-"
        numbers = f"{each.images_per_second:,.0f}", f"{each.ms_per_step:.3f}", f"{each.first_step_seconds:.1f}"
        table.add_row(each.case, each.engine, each.phase, *numbers, memory, share)
    return table


def ratios(timings: Sequence[Timing], reference: str) -> dict[str, float]:
    """Plug-in over plain, captured over eager, ours over a plain loop: as factors, all from one run."""
    speed = {(t.case, t.engine, t.phase): t.images_per_second for t in timings}
    found: dict[str, float] = {}
    for (case, engine, phase), value in speed.items():
        plain = speed.get((reference, engine, phase))
        if plain and case != reference and engine != "plain":
            found[f"time of {case} over {reference}, {phase} phase, {engine}"] = plain / value
        eager = speed.get((case, "eager", phase))
        if eager and engine not in ("eager", "plain"):
            found[f"speed of {engine} over eager, {case}, {phase} phase"] = value / eager
        loop = speed.get(("a plain loop", "plain", phase))
        if loop and engine != "plain" and case == reference:
            found[f"speed of {engine} over a plain loop, {case}, {phase} phase"] = value / loop
    return found


def ratio_table(found: dict[str, float]) -> Table:
    table = Table(title="Ratios", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("factor", justify="right")
    for name, value in found.items():
        table.add_row(name, f"{value:.3f}")
    return table
