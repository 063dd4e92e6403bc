"""The user's mounts beside the operator's own. Pure.

The rules of the CRD keep users' volumes from the names ``pdd-*`` and their mounts from /pdd, /dev, /proc and /sys; what is
left to meet is /tmp, and there the user's is taken.
"""

from __future__ import annotations

from typing import Any

from pdd_operator.api.v1alpha1 import PodTemplate


def with_user_mounts(own: list[dict[str, Any]], template: PodTemplate) -> list[dict[str, Any]]:
    """Every path once: server-side apply merges the list by it."""
    given = {str(mount["mountPath"]).rstrip("/") for mount in template.volume_mounts}
    return [*(mount for mount in own if mount["mountPath"] not in given), *template.volume_mounts]
