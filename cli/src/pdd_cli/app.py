"""The command line: options, their limits, their help. What a command does is imported only when it runs, so that help is quick."""

import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="pdd",
    help="Prefill and decode on separate vLLM engines that reuse each other's KV cache.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root() -> None:
    """Prefill and decode on separate vLLM engines that reuse each other's KV cache."""


@app.command()
def demo(
    turns: Annotated[
        int | None, typer.Option(min=3, max=40, help="Turns of the conversation.", show_default="7, quick: 4")
    ] = None,
    prefills: Annotated[
        int, typer.Option(min=1, max=4, help="Prefill engines. With 2 or more, turns land on different ones in turn.")
    ] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="A shorter conversation and only the first table.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave it serving afterwards, until Ctrl-C.")] = False,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the picture, the JSON and the logs.")] = Path(
        "out/demo"
    ),
    cache: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, help="Folder that keeps the converted model (0.5 GB).", show_default="~/.cache/pdd"
        ),
    ] = None,
    engine_python: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="Python that has vLLM and NIXL (or set PDD_ENGINE_PYTHON).",
            show_default="connector/.venv/bin/python",
        ),
    ] = None,
) -> None:
    """Watch follow-up turns reuse what decode holds: real vLLM engines on this machine, no GPU needed.

    Starts one prefill engine P, one decode engine D and the router, holds the same agent conversation with reuse off and on,
    and shows the time to the first token, what was read from which engine, and what was computed. Takes about
    eight minutes on two cores and needs 8 GB of memory. Ctrl-C leaves nothing behind but the cache and --out.
    """
    from pdd_cli.demo.command import run  # openai and matplotlib take a second to import
    from pdd_cli.demo.options import DemoOptions

    run(DemoOptions.resolve(turns, prefills, quick, keep, out, cache, engine_python, os.environ))
