"""Builds what a kind node is made of where no registry can be reached: a Debian by debootstrap, Kubernetes' own images, the node.

Everything is tagged localhost/ or with the name that kubeadm looks for, and only built if Docker has it not yet.
"""

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from pdd_e2e.cluster.docker_engine import NODE_FILES, RUNC
from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.programs import Programs
from pdd_e2e.cluster.shell import run, succeeds
from pdd_e2e.control_plane.binaries import Say, wanted_version

DEBIAN = "localhost/pdd-debian:bookworm"
KIND_FILES = NODE_FILES.parent
# What a node needs, what the product's images need to be built and run, and what PyTorch's library links to.
_NODE_PACKAGES = (
    "iptables,nftables,iproute2,conntrack,ethtool,runc,containernetworking-plugins,procps,kmod,mount,util-linux,jq"
)
# python3-distutils is what python3.11-venv's dependency on a virtual package comes to: debootstrap finds no providers.
_PYTHON_PACKAGES = "ca-certificates,python3.11,python3.11-venv,python3-distutils,libnuma1,libgomp1"
_SOURCES = Path("/etc/apt")
_BUILD_TIMEOUT_SECONDS = 600
NODE_REPOSITORY = "localhost/pdd-kind-node"
_PROGRAMS = ("containerd", "ctr", "containerd-shim-runc-v2", "kube-network-policies", "kubebox")
_SCRIPTS = ("start", "enforce-network-policies", RUNC)
_SETTINGS = ("pods.conflist", "network-policies.yaml")
CLASSIC = {"DOCKER_BUILDKIT": "0"}  # Debian's Docker has no BuildKit client


def node_image(programs: Programs, state: Path, say: Say) -> str:
    """The node image's name; it exists when this returns. Raises ClusterError."""
    version = wanted_version()
    name = node_image_name(version)
    if has_image(name):
        return name
    debian_image(state, say)
    say(f"building the node image {name}")
    with tempfile.TemporaryDirectory(dir=state) as folder:
        context = Path(folder)
        _system_images(programs, version, context)
        for part in _PROGRAMS:
            _link(programs.path(part), context / part)
        for part in (*_SCRIPTS, *_SETTINGS):
            shutil.copy(NODE_FILES / part, context / part)
            (context / part).chmod(0o755 if part in _SCRIPTS else 0o644)
        pause = next(image for image in _wanted_images(programs, version) if "/pause:" in image)
        settings = (NODE_FILES / "containerd.toml").read_text()
        (context / "containerd.toml").write_text(settings.replace("@PAUSE@", pause))
        build(NODE_FILES / "Dockerfile", context, name, arguments={"KUBERNETES": version})
    return name


def node_image_name(version: str, files: Path = KIND_FILES) -> str:
    """Another one for every change of what the image is made from, so that no node of an older make is taken for it."""
    digest = hashlib.sha256(f"{_NODE_PACKAGES},{_PYTHON_PACKAGES}".encode())
    parts = [*files.glob("node/*"), *files.glob("system/*"), *files.glob("modules/*/go.*")]
    for file in sorted(parts):
        digest.update(f"\0{file.relative_to(files)}\0".encode() + file.read_bytes())
    return f"{NODE_REPOSITORY}:{version}-{digest.hexdigest()[:12]}"


def debian_image(state: Path, say: Say) -> str:
    """Debian with what nodes, the product and engines need of it, from the mirror that this machine's apt uses."""
    if has_image(DEBIAN):
        return DEBIAN
    say("making a Debian image by debootstrap (about a minute)")
    with tempfile.TemporaryDirectory(dir=state) as folder:
        root = Path(folder) / "root"
        include = f"--include={_NODE_PACKAGES},{_PYTHON_PACKAGES}"
        command: list[str | Path] = ["debootstrap", "--variant=minbase", include, "bookworm", root, _mirror()]
        run(command, timeout_seconds=_BUILD_TIMEOUT_SECONDS)
        for package in (root / "var/cache/apt/archives").glob("*.deb"):
            package.unlink()
        archive = Path(folder) / "root.tar"
        run(["tar", "-C", root, "-cf", archive, "."], timeout_seconds=_BUILD_TIMEOUT_SECONDS)
        run(["docker", "import", archive, DEBIAN], timeout_seconds=_BUILD_TIMEOUT_SECONDS)
    return DEBIAN


def build(
    dockerfile: Path, context: Path, name: str, *, target: str = "", arguments: dict[str, str] | None = None
) -> None:
    """`docker build` with this machine's network. Raises ClusterError with the end of what it said."""
    options = ["--network", "host", "-f", str(dockerfile), "-t", name]
    options += ["--target", target] if target else []
    for key, value in (arguments or {}).items():
        options += ["--build-arg", f"{key}={value}"]
    run(["docker", "build", "--quiet", *options, context], env=CLASSIC, timeout_seconds=_BUILD_TIMEOUT_SECONDS)


def has_image(name: str) -> bool:
    """Whether Docker has it."""
    return succeeds(["docker", "image", "inspect", name])


def mirror_of(lists: str) -> str | None:
    """The first Debian mirror that apt's lists name, in either of their formats."""
    found = re.search(r"^(?:URIs:|deb(?: \[[^]]*\])?)\s+(\S+/debian)/?(?:\s|$)", lists, re.MULTILINE)
    return found[1] if found else None


def _mirror() -> str:
    files = [*sorted(_SOURCES.glob("sources.list.d/*.sources")), *sorted(_SOURCES.glob("sources.list*"))]
    mirror = mirror_of("\n".join(file.read_text() for file in files if file.is_file()))
    if mirror is None:
        raise ClusterError("apt names no Debian mirror on this machine: give a node image with --node-image")
    return mirror


def _wanted_images(programs: Programs, version: str) -> list[str]:
    command: list[str | Path] = [programs.path("kubeadm"), "config", "images", "list", "--kubernetes-version", version]
    return run(command).split()


def _system_images(programs: Programs, version: str, context: Path) -> None:
    """Writes `images.tar` into `context`: everything that kubeadm will start, by the names that it looks for."""
    with tempfile.TemporaryDirectory(dir=context.parent) as folder:
        own = Path(folder)
        binaries = own / "root" / "usr" / "local" / "bin"
        binaries.mkdir(parents=True)
        _link(programs.path("kubebox"), binaries / "kubebox")
        _link(programs.path("coredns"), own / "coredns")
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "etcd"):
            (binaries / name).symlink_to("kubebox")
        (own / "root" / "pause").symlink_to("usr/local/bin/kubebox")
        images = _wanted_images(programs, version)
        for image in images:
            target = next((part for part in ("pause", "coredns") if f"/{part}:" in image), "kubernetes")
            build(KIND_FILES / "system" / "Dockerfile", own, image, target=target)
        run(["docker", "save", "-o", context / "images.tar", *images], timeout_seconds=_BUILD_TIMEOUT_SECONDS)


def _link(source: Path, target: Path) -> None:
    """A hard link where that goes, since these files are large."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy(source, target)
