"""``orchestrator emulator``: a server with OpenAI and TGI streams whose timing comes from a stated model."""

from __future__ import annotations

from pathlib import Path

import click
from pydantic import ValidationError

from orchestrator.engines.emulator.flags import with_faults
from orchestrator.engines.emulator.profile import load_profile
from orchestrator.engines.emulator.server import Options, main
from orchestrator.errors import InputError
from orchestrator.spec.settings import EngineSettings, Hardware


@click.group(invoke_without_command=True)
@click.pass_context
@click.option("--port", type=int, default=8000, show_default=True, help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--profile", help="A profile file, or a name such as H100-80GB/Llama-3.1-8B.")
@click.option(
    "--model", default="meta-llama/Llama-3.1-8B-Instruct", show_default=True, help="Model to imitate and to serve."
)
@click.option("--served-model-name", default="", help="Name requests carry; the model's own unless given.")
@click.option("--accelerator", default="H100-80GB", show_default=True, help="Device to imitate.")
@click.option(
    "--set", "settings", multiple=True, metavar="FIELD=VALUE", help="Any engine setting, e.g. tensor_parallel_size=2."
)
@click.option("--fault", "faults", multiple=True, metavar="NAME=VALUE", help="See docs/emulator.md; may repeat.")
@click.option("--max-concurrent-requests", type=int, default=128, show_default=True, help="TGI's limit: 429 above it.")
def emulator(
    context: click.Context,
    port: int,
    host: str,
    profile: str | None,
    model: str,
    served_model_name: str,
    accelerator: str,
    settings: tuple[str, ...],
    faults: tuple[str, ...],
    max_concurrent_requests: int,
) -> int:
    """Serve OpenAI and TGI streams with the timing of a stated model. Nothing is computed; /version says so.

    \b
    orchestrator emulator --port 8000 --profile H100-80GB/Llama-3.1-8B
    orchestrator load http://127.0.0.1:8000 --model meta-llama/Llama-3.1-8B-Instruct --concurrency 64 ...
    orchestrator emulator fit results/ --output profile.yaml
    """
    if context.invoked_subcommand is not None:
        return 0
    given = dict(entry.partition("=")[::2] for entry in settings)
    try:
        options = Options(
            settings=EngineSettings.model_validate({"engine": "emulator", "model": model, "profile": profile} | given),
            hardware=Hardware(name="emulated", accelerator=accelerator),
            profile=with_faults(load_profile(profile), list(faults)),
            host=host,
            port=port,
            served_name=served_model_name,
            max_concurrent_requests=max_concurrent_requests,
        )
    except ValidationError as error:
        raise InputError(
            "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        ) from error
    return main(options)


@emulator.command()
@click.argument("results")
@click.option("--output", type=click.Path(dir_okay=False), help="Write the calibrated profile here; stdout otherwise.")
@click.option("--profile", help="What to imitate where that is not the sweep's own model and device.")
@click.option("--engine", help="Use this engine's deployments only; needed where several were measured.")
def fit(results: str, output: str | None, profile: str | None, engine: str | None) -> int:
    """Calibrate the model's constants on the Parquet of a sweep, and say what error they leave."""
    import yaml

    from orchestrator.engines.emulator.fit import fit as calibrate

    found = calibrate(results, load_profile(profile), engine)
    text = yaml.safe_dump(found.profile.model_dump(mode="json", exclude_defaults=True), sort_keys=False)
    if output is None:
        click.echo(text, nl=False)
    else:
        Path(output).write_text(text, encoding="utf-8")
    for name, errors in found.by_sample.items():
        click.echo(f"{name}: {_percentages(errors)}", err=True)
    click.echo(f"median error over {found.samples} samples: {_percentages(found.error)}", err=True)
    held_out = "too few samples" if found.held_out_error is None else _percentages(found.held_out_error)
    click.echo(f"of samples held out of the fit: {held_out}", err=True)
    return 0


def _percentages(errors: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.1%}" for name, value in errors.items())
