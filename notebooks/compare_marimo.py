"""Eight replicas, or one replica over eight GPUs? The limits are sliders: results are judged again
while they move. ``marimo edit notebooks/compare_marimo.py``; as a script it prints the answer.
"""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import subprocess
    import sys
    from pathlib import Path

    import marimo as mo

    import orchestrator

    return Path, mo, orchestrator, subprocess, sys


@app.cell
def _(Path, subprocess, sys):
    # results of your own: their folder, or s3://bucket/sweeps
    folder = Path(__file__).parent
    results = str(folder / "simulated")
    experiment = folder.parent / "experiments" / "replicas-or-tp.yaml"
    if not Path(results).exists():
        command = [sys.executable, "-m", "orchestrator", "simulate", str(experiment)]
        subprocess.run([*command, "--results", results, "--no-report"], check=True)
    return (results,)


@app.cell
def _(mo):
    ttft = mo.ui.slider(50, 1000, step=50, value=500, label="TTFT at most, ms")
    tpot = mo.ui.slider(5, 50, step=1, value=20, label="TPOT at most, ms")
    mo.vstack([ttft, tpot])
    return tpot, ttft


@app.cell
def _(mo, orchestrator, results, tpot, ttft):
    limits = f"ttft<={ttft.value}ms,tpot<={tpot.value}ms,attainment>=0.95"
    answer = orchestrator.best(results, slo=limits)
    why = answer.attrs["why"]
    print(why)
    mo.vstack([mo.md(f"**{limits}**: {why}"), answer[["deployment", "level", "value", "unit"]]])
    return (limits,)


@app.cell
def _(limits, mo, orchestrator, results):
    points = orchestrator.points(results, slo=limits)
    curve = orchestrator.plot.curve(points, "attainment")
    curve.axhline(0.95, color="grey", linestyle=":")
    mo.as_html(curve)
    return (points,)


@app.cell
def _(orchestrator, points):
    orchestrator.plot.frontier(points)
    return


if __name__ == "__main__":
    app.run()
