"""Ports for engines and routers."""

import socket
from pathlib import Path

from pdd_cli.local.ports import free_ports


def test_ports_are_different_free_and_not_the_kernels_to_give() -> None:
    ports = free_ports(40)
    first_of_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 40
    assert all(1024 < port < first_of_kernel for port in ports)


def test_a_port_in_use_is_not_given() -> None:
    taken = free_ports(1)[0]
    with socket.socket() as server:
        server.bind(("127.0.0.1", taken))
        assert taken not in free_ports(200)
