"""The control plane itself: it answers as who asks, counts, breaks as told, and leaves nothing behind."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pdd_cli.local.process_groups import living_members
from pdd_e2e.control_plane.api import Json, KubeApi
from pdd_e2e.control_plane.audit import count_by_user_and_resource
from pdd_e2e.control_plane.binaries import PROGRAMS, Binaries
from pdd_e2e.control_plane.errors import ApiError, ApiUnreachableError, ControlPlaneError
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane


def config_map(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}}


def config_maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def let_edit_config_maps(plane: LocalControlPlane, namespace: str, subject: Json) -> None:
    plane.api.create(
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "edit"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [subject],
        },
    )


def test_kubectl_from_the_assets_reads_the_namespace(control_plane: LocalControlPlane, namespace: str) -> None:
    assert namespace in control_plane.kubectl("get", "namespaces", "-o", "name")
    with pytest.raises(ControlPlaneError, match="NotFound"):
        control_plane.kubectl("get", "namespace", "there-is-none")


def test_a_service_account_may_do_what_rbac_grants_and_no_more(
    control_plane: LocalControlPlane, namespace: str
) -> None:
    kubeconfig = control_plane.kubeconfig_for(service_account=(namespace, "default"))
    with KubeApi(kubeconfig) as api:
        with pytest.raises(ApiError) as refused:
            api.create(config_maps(namespace), config_map("one"))
        assert refused.value.code == 403
        assert f"system:serviceaccount:{namespace}:default" in refused.value.message
        let_edit_config_maps(
            control_plane, namespace, {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
        )
        assert api.create(config_maps(namespace), config_map("one"))["data"] == {"a": "1"}
    assert control_plane.kubectl("auth", "whoami", kubeconfig=kubeconfig).count(f"{namespace}:default") == 1


def test_a_user_comes_with_its_groups(control_plane: LocalControlPlane, namespace: str) -> None:
    subject = {"kind": "Group", "name": "pdd-testers", "apiGroup": "rbac.authorization.k8s.io"}
    let_edit_config_maps(control_plane, namespace, subject)
    inside = control_plane.kubeconfig_for(user="ann", groups=["pdd-testers"])
    outside = control_plane.kubeconfig_for(user="bob", groups=["others"])
    with KubeApi(inside) as ann, KubeApi(outside) as bob:
        ann.create(config_maps(namespace), config_map("hers"))
        with pytest.raises(ApiError, match="403"):
            bob.create(config_maps(namespace), config_map("his"))


def test_the_audit_log_counts_writes_by_user_and_resource(control_plane: LocalControlPlane, namespace: str) -> None:
    kubeconfig = control_plane.kubeconfig_for(user="counted", groups=["system:masters"])
    start = control_plane.audit.position()
    assert control_plane.audit.writes(since=start, user="counted") == []
    with KubeApi(kubeconfig, user_agent="counter/1") as api:
        for number in range(3):
            api.create(config_maps(namespace), config_map(f"map-{number}"))
        api.patch(f"{config_maps(namespace)}/map-0", {"data": {"a": "2"}})
        api.delete(f"{config_maps(namespace)}/map-1")
        api.get(config_maps(namespace))
        with pytest.raises(ApiError, match="409"):
            api.create(config_maps(namespace), config_map("map-0"))
    writes = control_plane.audit.writes(since=start, user="counted", namespace=namespace)
    assert count_by_user_and_resource(writes) == {
        ("counted", "create", "configmaps"): 4,
        ("counted", "patch", "configmaps"): 1,
        ("counted", "delete", "configmaps"): 1,
    }
    assert [call.code for call in writes if call.verb == "create"] == [201, 201, 201, 409]
    assert {call.user_agent for call in writes} == {"counter/1"}
    reads = [call for call in control_plane.audit.calls(since=start, user="counted") if not call.mutating]
    assert [call.verb for call in reads] == ["list"]


def test_a_paused_api_server_answers_late_and_a_killed_one_not_at_all(
    control_plane: LocalControlPlane, namespace: str
) -> None:
    with KubeApi(control_plane.kubeconfig, timeout_seconds=1.0) as hasty:
        path = f"/api/v1/namespaces/{namespace}"
        control_plane.pause_api_server()
        with pytest.raises(ApiUnreachableError):
            hasty.get(path)
        control_plane.resume_api_server()
        with KubeApi(control_plane.kubeconfig) as patient:
            assert patient.get(path)["metadata"]["name"] == namespace
            before = control_plane.server_pids()
            control_plane.kill_api_server()
            with pytest.raises(ApiUnreachableError):
                patient.get(path)
            control_plane.restart_api_server()
            assert patient.get(path)["metadata"]["name"] == namespace
    after = control_plane.server_pids()
    assert after["kube-apiserver"] != before["kube-apiserver"]
    assert after["etcd"] == before["etcd"]


def test_a_watch_sees_changes_and_ends_when_closed(control_plane: LocalControlPlane, namespace: str) -> None:
    path = config_maps(namespace)
    version = control_plane.api.get(path)["metadata"]["resourceVersion"]
    watch = control_plane.api.watch(path, version)
    control_plane.api.create(path, config_map("seen"))
    events = iter(watch)
    names = []
    while "seen" not in names:
        names.append(next(events)["object"]["metadata"]["name"])
    closing = threading.Timer(0.2, watch.close)
    closing.start()
    assert list(events) == []
    closing.join()


WIDGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.org"},
    "spec": {
        "group": "example.org",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}},
        ],
    },
}


def test_it_collects_children_of_its_crds_and_ends_every_process(tmp_path: Path) -> None:
    crd = tmp_path / "widgets.json"
    crd.write_text(json.dumps(WIDGETS))
    with LocalControlPlane(crds=[crd]) as plane:
        pids = list(plane.server_pids().values())
        folder = plane.folder
        assert len(pids) == 3
        assert all(living_members(pid) for pid in pids)
        assert folder.is_dir()
        widgets = "/apis/example.org/v1/namespaces/default/widgets"
        owner = plane.api.create(
            widgets, {"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "owner"}}
        )
        child = config_map("child")
        child["metadata"]["ownerReferences"] = [
            {"apiVersion": "example.org/v1", "kind": "Widget", "name": "owner", "uid": owner["metadata"]["uid"]}
        ]
        plane.api.create(config_maps("default"), child)
        plane.api.delete(f"{widgets}/owner", {"propagationPolicy": "Background"})
        deadline = time.monotonic() + 15
        while "child" in {one["metadata"]["name"] for one in plane.api.items(config_maps("default"))}:
            assert time.monotonic() < deadline, "the garbage collector did not know the kind from its start"
            time.sleep(0.05)
    assert not any(living_members(pid) for pid in pids)
    assert not folder.exists()


def programs_with(folder: Path, control_plane: LocalControlPlane, name: str, script: str) -> Binaries:
    """Those of `control_plane`, with a shell script for one of them."""
    for program in PROGRAMS:
        (folder / program).symlink_to(control_plane.binaries.path(program).resolve())
    (folder / name).unlink()
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return Binaries(folder)


def wait_for_pid(file: Path) -> int:
    deadline = time.monotonic() + 30
    while not (file.is_file() and file.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int(file.read_text())


def test_an_interrupt_while_starting_ends_every_process(control_plane: LocalControlPlane, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    never_ready = programs_with(tmp_path, control_plane, "kube-apiserver", f"echo $$ > {file}; exec sleep 120")
    plane = LocalControlPlane(never_ready, parent=tmp_path)

    def press_ctrl_c() -> None:
        wait_for_pid(file)
        pids.update(plane.server_pids())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    pids: dict[str, int] = {}
    pressing = threading.Thread(target=press_ctrl_c)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background ignore Ctrl-C
    try:
        pressing.start()
        with pytest.raises(KeyboardInterrupt):
            plane.__enter__()
        pressing.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert set(pids) == {"etcd", "kube-apiserver"}
    assert not any(living_members(pid) for pid in pids.values())
    assert (plane.folder / "kube-apiserver.log").is_file()
    assert not (plane.folder / "secrets").exists()


def test_the_death_of_its_process_ends_every_process(control_plane: LocalControlPlane, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    programs_with(tmp_path, control_plane, "etcd", f"echo $$ > {file}; exec sleep 120")
    code = (
        "import pathlib, sys\n"
        "from pdd_e2e.control_plane.binaries import PROGRAMS, Binaries\n"
        "from pdd_e2e.control_plane.local_control_plane import LocalControlPlane\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "LocalControlPlane(Binaries(folder), parent=folder).__enter__()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as owner:
        etcd = wait_for_pid(file)
        assert living_members(etcd)
        owner.kill()
    deadline = time.monotonic() + 20
    while living_members(etcd) or list(tmp_path.glob("pdd-control-plane-*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_start_that_fails_says_why_and_leaves_nothing(control_plane: LocalControlPlane, tmp_path: Path) -> None:
    script = "echo this server does not start; exit 1"
    plane = LocalControlPlane(programs_with(tmp_path, control_plane, "kube-apiserver", script), parent=tmp_path)
    with pytest.raises(ControlPlaneError, match="this server does not start"):
        plane.__enter__()
    assert plane.server_pids() == {}
    assert "this server does not start" in (plane.folder / "kube-apiserver.log").read_text()
