"""The command line: options, their limits, their help. What a command does is imported only when it runs, so that help is quick."""

import os
from pathlib import Path
from typing import Annotated

import typer

from pdd_cli.choices import OptionalKind, RenderOutput, ReportOutput, TransportChoice

app = typer.Typer(
    name="pdd",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root() -> None:
    """Prefill and decode on separate vLLM engines that reuse each other's KV cache.

    Examples:

    - `pdd demo` shows it on this machine, without a GPU
    - `pdd doctor` says whether a cluster is ready for it
    - `pdd render -f docs/samples/p5en-efa.yaml --summary` shows what a PDDeployment becomes
    - `pdd status glm-5` says how one stands, why, and what to do
    """


Kubeconfig = Annotated[
    Path | None, typer.Option(dir_okay=False, help="Kubeconfig file.", show_default="KUBECONFIG, or ~/.kube/config")
]
Context = Annotated[
    str | None, typer.Option(help="Context of the kubeconfig.", show_default="its current one", metavar="NAME")
]


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
    eight minutes on two cores and needs 12 GB of memory. Ctrl-C leaves nothing behind but the cache and --out.

    Exit codes: 0 every promise held, 5 one did not, 4 an engine or router did not start or went away, 3 no engine environment, 1 no room.

    Examples:

    - `pdd demo --quick`
    - `pdd demo --prefills 2 --keep`
    """
    from pdd_cli.demo.command import run  # openai and matplotlib take a second to import
    from pdd_cli.demo.options import DemoOptions

    run(DemoOptions.resolve(turns, prefills, quick, keep, out, cache, engine_python, os.environ))


@app.command()
def render(
    file: Annotated[
        list[str],
        typer.Option("--file", "-f", metavar="FILE", help="YAML or JSON file with PDDeployments; - is standard input."),
    ],
    output: Annotated[
        RenderOutput, typer.Option("--output", "-o", help="All of it, names only, or what it asks of the cluster.")
    ] = RenderOutput.YAML,
    summary: Annotated[bool, typer.Option("--summary", help="The same as -o summary.")] = False,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of objects that name none.", show_default="default"),
    ] = None,
    has: Annotated[
        list[OptionalKind] | None, typer.Option("--has", help="A kind that the cluster has. May be repeated.")
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=REFERENCE",
            help="Another default image: router, connector, engine-gpu, engine-neuron or engine-cpu. May be repeated.",
        ),
    ] = None,
    chart_output: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="What `helm template` with your values prints: its images and names count instead of the chart's defaults.",
        ),
    ] = None,
) -> None:
    """Show what the operator would make of PDDeployments. Needs no cluster.

    Every problem of every object is told, one line each, with the field and what it must be; exit code 2.

    Examples:

    - `pdd render -f cr.yaml | kubectl apply --dry-run=server -f -` lets a cluster judge it
    - `pdd render -f cr.yaml --summary` shows pods, devices and images
    - `pdd render -f old.yaml -f new.yaml -o name` lists names, with the revision groups
    - `kubectl get pdd -A -o yaml | pdd render -f -` shows what should be there now
    - `helm template pdd-operator charts/pdd-operator -n pdd-system -f values.yaml | pdd render -f cr.yaml --chart-output -`
    """
    from pdd_cli.render.command import RenderOptions, run  # the operator's packages take half a second to import

    chosen = RenderOutput.SUMMARY if summary else output
    run(RenderOptions(tuple(file), chosen, namespace, tuple(has or ()), chart_output, tuple(image or ())))


@app.command()
def status(
    name: Annotated[str, typer.Argument(help="Name of the PDDeployment.")],
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Its namespace.", show_default="the context's")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Tell of every change until Ctrl-C; with -o json a line each.")
    ] = False,
    output: Annotated[ReportOutput, typer.Option("--output", "-o")] = ReportOutput.TEXT,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    timeout: Annotated[float, typer.Option(min=1, max=600, help="Seconds to wait for the API server.")] = 10,
) -> int:
    """Show how a PDDeployment stands, why, and what to do.

    Exit codes: 0 ready, 3 not ready, 4 there is no such PDDeployment or the chart is not installed, 1 the cluster cannot be asked.

    Examples:

    - `pdd status glm-5 -n agents`
    - `pdd status glm-5 -n agents --watch`
    - `pdd status glm-5 -o json | jq .endpoint`
    - `until pdd status glm-5 > /dev/null; do sleep 5; done`
    """
    from pdd_cli.cluster.connection import ClusterOptions  # the Kubernetes client takes half a second to import
    from pdd_cli.status.command import StatusOptions, run

    return run(StatusOptions(name, ClusterOptions(kubeconfig, context, namespace, timeout), output, watch))


@app.command()
def doctor(
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Where PDDeployments are to be.", show_default="the context's"),
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE", help="Instance type to run on, or CPU.", show_default="those that the cluster's nodes have"
        ),
    ] = None,
    transport: Annotated[
        TransportChoice | None,
        typer.Option(help="As spec.transport.backend.", show_default="EFA where the instance type has it"),
    ] = None,
    output: Annotated[ReportOutput, typer.Option("--output", "-o")] = ReportOutput.TEXT,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    timeout: Annotated[float, typer.Option(min=1, max=600, help="Seconds for all of the reading.")] = 30,
) -> int:
    """Say whether a cluster has what PDDeployments need, and what to do where it has not. Changes nothing.

    Exit codes: 0 nothing stands in the way, 1 something does (✗) or the cluster cannot be asked.

    Examples:

    - `pdd doctor`
    - `pdd doctor -n agents --accelerator p5en.48xlarge`
    - `pdd doctor --accelerator g6e.12xlarge --transport Socket`
    - `pdd doctor --accelerator CPU -o json | jq '.checks[] | select(.level != "Pass")'`
    """
    from pdd_cli.cluster.connection import ClusterOptions  # the Kubernetes client takes half a second to import
    from pdd_cli.doctor.command import DoctorOptions, run

    return run(DoctorOptions(ClusterOptions(kubeconfig, context, namespace, timeout), accelerator, transport, output))
