"""PDDeployments to render: the documentation's samples and those of the operator's snapshots."""

from pathlib import Path

import yaml

from pdd_cli.render.objects import Shown, show
from pdd_cli.render.settings import CHART_DEFAULTS, with_images
from pdd_operator.api.objects import Manifest
from pdd_operator.api.parse import parse_deployment
from pdd_operator.render.inputs import ClusterFacts

ROOT = Path(__file__).parents[3]
DOCUMENTED = sorted((ROOT / "docs" / "samples").glob("*.yaml"))
SAMPLES = sorted((ROOT / "operator" / "tests" / "snapshots" / "samples").glob("*.yaml"))
EVERY_KIND = ClusterFacts(pod_monitors=True, grafana_dashboards=True)
SETTINGS = with_images(CHART_DEFAULTS, [f"engine-{name}=registry.example/{name}:1" for name in ("cpu", "neuron")])


def sample(path: Path) -> Manifest:
    loaded: Manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def shown(manifest: Manifest, cluster: ClusterFacts = EVERY_KIND, **metadata: str) -> Shown:
    return show(parse_deployment(manifest | {"metadata": manifest["metadata"] | metadata}), SETTINGS, cluster)
