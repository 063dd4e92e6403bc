"""Whether a live object still says what was rendered: a comparison of the rendered part only. Pure.

What others added (annotations, labels, variables of other managers, defaults of the API server) is no drift. Lists that server-side apply
merges by key are compared by that key; all others must be equal in length and order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pdd_operator.api.objects import Manifest
from pdd_operator.api.quantities import parse_quantity

_LIST_KEYS: Final[Mapping[str, tuple[tuple[str, Any], ...]]] = {
    "containers": (("name", None),),
    "initContainers": (("name", None),),
    "env": (("name", None),),
    "volumes": (("name", None),),
    "volumeMounts": (("mountPath", None),),
    "imagePullSecrets": (("name", None),),
    "topologySpreadConstraints": (("topologyKey", None), ("whenUnsatisfiable", None)),
    "ownerReferences": (("uid", None),),
    "containerPorts": (("containerPort", None), ("protocol", "TCP")),
    "servicePorts": (("port", None), ("protocol", "TCP")),
}
"""Field of a list → the fields that name its items, with the default of each. ``ports`` is told apart by ``_list_keys``."""

_STRING_MAPS: Final = frozenset(
    {"annotations", "labels", "matchLabels", "nodeSelector", "requests", "limits", "data", "selector"}
)
"""Where the API server stores nothing for an empty mapping. Elsewhere it says something: ``emptyDir: {}``."""
_ATOMIC_MAPS: Final = frozenset(
    {"selector", "podSelector", "namespaceSelector", "labelSelector", "matchLabels", "nodeSelector"}
)
"""Mappings that have one owner: what others added there is drift, as it changes what is selected."""
_FALSE_IS_ABSENT: Final = frozenset({"readOnly"})
"""What the API server does not store where it is false. Elsewhere false says something: ``automountServiceAccountToken``."""
_QUANTITIES: Final = frozenset({"requests", "limits", "sizeLimit", "averageValue", "value", "divisor"})


def first_drift(desired: Manifest, live: Manifest) -> str | None:
    """Path of the first rendered field that the live object lacks or has otherwise; None where there is none."""
    return _differs(desired, live, ())


def template_drift(desired: Manifest, live: Manifest) -> str | None:
    """As ``first_drift``, of a workload's pod template alone."""
    return _differs(desired["spec"].get("template"), live["spec"].get("template"), ("spec", "template"))


def _differs(desired: Any, live: Any, path: tuple[str, ...]) -> str | None:
    if isinstance(desired, Mapping):
        return _mapping_differs(desired, live, path)
    if isinstance(desired, list | tuple):
        return _list_differs(desired, live, path)
    if desired is None or (desired is False and live is None and path and path[-1] in _FALSE_IS_ABSENT):
        return None  # nothing is said about it
    equal = desired == live and isinstance(desired, bool) == isinstance(live, bool)
    return None if equal or _same_quantity(desired, live, path) else ".".join(path)


def _mapping_differs(desired: Mapping[str, Any], live: Any, path: tuple[str, ...]) -> str | None:
    if live is None and not desired and path and path[-1] in _STRING_MAPS:
        return None
    if not isinstance(live, Mapping):
        return ".".join(path)
    if path and path[-1] in _ATOMIC_MAPS and (added := sorted(live.keys() - desired.keys())):
        return ".".join((*path, added[0]))
    for name, value in desired.items():
        if found := _differs(value, live.get(name), (*path, str(name))):
            return found
    return None


def _list_differs(desired: Sequence[Any], live: Any, path: tuple[str, ...]) -> str | None:
    if live is None and not desired:
        return None  # the API server stores no empty lists
    if not isinstance(live, list):
        return ".".join(path)
    keys = _list_keys(path, desired)
    if keys is not None and _tells_apart(desired, keys):
        return _keyed_differs(desired, live, keys, path)
    if len(desired) != len(live):
        return ".".join(path)
    for position, (wanted, found) in enumerate(zip(desired, live, strict=True)):
        if differs := _differs(wanted, found, (*path, str(position))):
            return differs
    return None


def _keyed_differs(
    desired: Sequence[Any], live: Sequence[Any], keys: tuple[tuple[str, Any], ...], path: tuple[str, ...]
) -> str | None:
    """Every desired item must be there, and the desired ones in their order: that of init containers and variables matters."""
    places = {_key_of(item, keys): place for place, item in enumerate(live) if _tells_apart([item], keys)}
    last = -1
    for item in desired:
        key = _key_of(item, keys)
        here = (*path, "/".join(str(part) for part in key))
        place = places.get(key, -1)
        if place < last or place < 0:
            return ".".join(here)
        last = place
        if differs := _differs(item, live[place], here):
            return differs
    return None


def _list_keys(path: tuple[str, ...], items: Sequence[Any]) -> tuple[tuple[str, Any], ...] | None:
    name = path[-1] if path else ""
    if name == "ports":
        if path == ("spec", "ports"):
            name = "servicePorts"
        elif all(isinstance(item, Mapping) and "containerPort" in item for item in items):
            name = "containerPorts"
    return _LIST_KEYS.get(name)


def _tells_apart(items: Sequence[Any], keys: tuple[tuple[str, Any], ...]) -> bool:
    """Whether each is a mapping with a key of its own, as the API server stores them. What a user wrote need not be."""
    if not all(isinstance(item, Mapping) for item in items):
        return False
    found = [_key_of(item, keys) for item in items]
    simple = all(isinstance(part, str | int | None) for key in found for part in key)
    return simple and len(set(found)) == len(found)


def _key_of(item: Mapping[str, Any], keys: tuple[tuple[str, Any], ...]) -> tuple[Any, ...]:
    return tuple(item.get(name, default) for name, default in keys)


def _same_quantity(desired: Any, live: Any, path: tuple[str, ...]) -> bool:
    if not _QUANTITIES.intersection(path[-2:]):
        return False
    first, second = parse_quantity(desired), parse_quantity(live)
    return first is not None and first == second
