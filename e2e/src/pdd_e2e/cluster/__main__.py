"""`python -m pdd_e2e.cluster up|images|down`: a kind cluster for tests on this machine, with progress on standard error."""

import argparse
import os
import sys
import time

from pdd_cli.errors import CliError
from pdd_e2e.cluster.engine_files import engine_mounts
from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.kind_provider import KindProvider
from pdd_e2e.cluster.product_images import build_product_images
from pdd_e2e.control_plane.binaries import cache_folder
from pdd_e2e.control_plane.errors import ControlPlaneError

_BEGAN = time.monotonic()


def say(line: str) -> None:
    """With the time since the start."""
    print(f"[{time.monotonic() - _BEGAN:4.0f} s] {line}", file=sys.stderr, flush=True)


def main() -> int:
    """0, or 1 with what is wrong and what to do."""
    parser = argparse.ArgumentParser(prog="python -m pdd_e2e.cluster", description=__doc__)
    parser.add_argument("action", choices=("up", "images", "down"), help="images: build the product's and load them")
    parser.add_argument("--node-image", help="a node image of kind's own to pull, instead of building one")
    parser.add_argument("--base-image", help="a Python 3.11 to build the product's images on, instead of one made here")
    options = parser.parse_args()
    state = cache_folder(os.environ) / "kind"
    try:
        mounts = {} if options.action == "down" else engine_mounts(say)  # `images` may have to make the cluster, too
        provider = KindProvider(state, mounts, say, options.node_image)
        if options.action == "down":
            provider.down()
            return 0
        kubectl = provider.up()
        if options.action == "images":
            provider.load(build_product_images(state, say, base_image=options.base_image))
        print(f"export KUBECONFIG={kubectl.kubeconfig} PATH={kubectl.program.parent}:$PATH")
    except (ClusterError, ControlPlaneError, CliError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
