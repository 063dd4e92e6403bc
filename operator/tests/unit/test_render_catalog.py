"""The catalog: complete for what the rules accept, and never LIBFABRIC without EFA."""

from __future__ import annotations

import pytest

from pdd_operator.api.accelerators import CPU, INSTANCE_TYPES, InstanceType, Platform
from pdd_operator.api.v1alpha1 import Backend
from pdd_operator.render import UnsupportedError
from pdd_operator.render.catalog import PLATFORMS, TRANSPORTS, transport_of

USABLE = [row for row in (*INSTANCE_TYPES.values(), CPU) if row.refused is None]


@pytest.mark.parametrize("row", USABLE, ids=lambda row: row.name)
def test_every_usable_instance_has_a_transport(row: InstanceType) -> None:
    if row.efa_devices:
        assert transport_of(row.platform, Backend.EFA).env["FI_PROVIDER"] == "efa"
    else:
        assert transport_of(row.platform, Backend.SOCKET).nixl_backend == "UCX"


def test_libfabric_is_for_efa_alone_and_sockets_say_which() -> None:
    for (platform, backend), row in TRANSPORTS.items():
        assert (row.nixl_backend == "LIBFABRIC") == (backend is Backend.EFA)
        assert ("UCX_TLS" in row.env) == (backend is Backend.SOCKET)
        if backend is Backend.SOCKET:
            # UCX on a node with GPUs refuses a list without CUDA.
            assert ("cuda_copy" in row.env["UCX_TLS"]) == (platform is Platform.GPU)


@pytest.mark.parametrize("pair", [(Platform.NEURON, Backend.SOCKET), (Platform.CPU, Backend.EFA)])
def test_what_nobody_has_documented_is_refused(pair: tuple[Platform, Backend]) -> None:
    with pytest.raises(UnsupportedError, match="no documented way"):
        transport_of(*pair)


def test_every_row_says_where_it_comes_from() -> None:
    assert all(row.source for row in (*PLATFORMS.values(), *TRANSPORTS.values(), *USABLE))
