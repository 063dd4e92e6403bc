"""The kind cluster `pdd-e2e` on this machine. Its kubeconfig lies in the state folder, never in the user's own."""

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from pdd_e2e.cluster.docker_engine import ensure_docker, stop_docker
from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.cluster.node_image import CLASSIC, KIND_FILES, NODE_REPOSITORY, node_image, node_image_name
from pdd_e2e.cluster.product_images import ProductImages
from pdd_e2e.cluster.programs import Programs, find_programs
from pdd_e2e.cluster.shell import run
from pdd_e2e.control_plane.binaries import Say, wanted_version

NAME = "pdd-e2e"
_CREATE_TIMEOUT_SECONDS = 400
_WAIT = "240s"
_FIRST_START = timedelta(seconds=60)
_LOAD_TIMEOUT_SECONDS = 600
_LIST_IMAGES = ("ctr", "--namespace", "k8s.io", "images", "list", "--quiet")


@dataclass(frozen=True, slots=True)
class KindProvider:
    """`mounts`: folders of this machine by where nodes have them. `image`: a node image to use instead of one built here."""

    state: Path
    mounts: Mapping[str, Path]
    say: Say
    image: str | None = None

    def up(self) -> Kubectl:
        """Minutes the first time, seconds where it runs already. Raises ClusterError, ControlPlaneError.

        A cluster whose node was made from other files than there are now is made anew, and so is one that stood still with its Docker engine:
        its pods are not what their conditions say.
        """
        self.state.mkdir(parents=True, exist_ok=True)
        ensure_docker(self.state, self.say)
        programs = find_programs(say=self.say)
        exists = NAME in self._kind(programs, "get", "clusters").split()
        why = _why_anew(self.image) if exists else ""
        if why:
            self.say(f"the node of {NAME} {why}: deleting the cluster")
            self._kind(programs, "delete", "cluster", "--name", NAME)
            exists = False
        if not exists:
            self._create(programs)
        return Kubectl(programs.path("kubectl"), self.kubeconfig, f"kind-{NAME}")

    def down(self) -> None:
        """Deletes the cluster, and ends the Docker engine if it was started for this. Images stay for the next time.

        Where the engine has ended before, it is started for this: a cluster that it was running comes back with it. Raises ClusterError.
        """
        if self.kubeconfig.exists():
            ensure_docker(self.state, self.say)
            self._kind(find_programs(say=self.say), "delete", "cluster", "--name", NAME)
            self.kubeconfig.unlink(missing_ok=True)
        stop_docker(self.state, self.say)

    def load(self, images: ProductImages) -> None:
        """What the node has not, through an archive: only kind's own node images can be asked by kind."""
        programs = find_programs(say=self.say)
        missing = missing_images(images, run(["docker", "exec", f"{NAME}-control-plane", *_LIST_IMAGES]).split())
        if not missing:
            return
        self.say(f"loading {len(missing)} images into the cluster")
        archive = self.state / "images.tar"
        try:
            run(["docker", "save", "-o", archive, *missing], timeout_seconds=_LOAD_TIMEOUT_SECONDS)
            self._kind(programs, "load", "image-archive", str(archive), "--name", NAME)
        finally:
            archive.unlink(missing_ok=True)

    @property
    def kubeconfig(self) -> Path:
        """Of this cluster alone."""
        return self.state / "kubeconfig"

    def _create(self, programs: Programs) -> None:
        image = self.image or node_image(programs, self.state, self.say)
        base = yaml.safe_load((KIND_FILES / "kind.yaml").read_text())
        config = self.state / "kind.yaml"
        config.write_text(yaml.safe_dump(cluster_config(base, self.mounts, built_here=self.image is None)))
        self.say(f"creating the kind cluster {NAME} (a minute or two)")
        self._kind(programs, "create", "cluster", "--config", str(config), "--image", image, "--wait", _WAIT)

    def _kind(self, programs: Programs, *arguments: str) -> str:
        env = {**CLASSIC, "KUBECONFIG": str(self.kubeconfig)}
        return run([programs.path("kind"), *arguments], env=env, timeout_seconds=_CREATE_TIMEOUT_SECONDS)


def missing_images(images: ProductImages, present: Container[str]) -> list[str]:
    """Those to load. A new engine's image comes with the tag that samples name: that tag may be there from an older build."""
    missing = [name for name in images.all if name not in present]
    engine = images.engine if set(images.engine) & set(missing) else ()
    return [name for name in images.all if name in missing or name in engine]


def is_outdated(running: str, wanted: str | None, built_here: str) -> bool:
    """Whether a node of image `running` has to go. With no `wanted` image, a node that was not built here may stay."""
    if wanted is not None:
        return running != wanted
    return running.startswith(f"{NODE_REPOSITORY}:") and running != built_here


def was_started_again(made: str, started: str) -> bool:
    """Whether a container's last start (both times as Docker writes them) is not the one right after it was made."""
    return datetime.fromisoformat(started) - datetime.fromisoformat(made) > _FIRST_START


def _why_anew(image: str | None) -> str:
    node = json.loads(run(["docker", "inspect", f"{NAME}-control-plane"]))[0]
    if is_outdated(node["Config"]["Image"], image, node_image_name(wanted_version())):
        return "is of another make"
    if not node["State"]["Running"] or was_started_again(node["Created"], node["State"]["StartedAt"]):
        return "has stood still"
    return ""


def cluster_config(base: Mapping[str, Any], mounts: Mapping[str, Path], *, built_here: bool) -> dict[str, Any]:
    """`base` with `mounts` read-only in every node. A node image of kind's own brings its network and wants its defaults."""
    config = {
        key: value for key, value in base.items() if built_here or key not in ("networking", "kubeadmConfigPatches")
    }
    extra = [{"hostPath": str(path), "containerPath": inside, "readOnly": True} for inside, path in mounts.items()]
    return config | {"nodes": [node | {"extraMounts": extra} for node in base["nodes"]]}
