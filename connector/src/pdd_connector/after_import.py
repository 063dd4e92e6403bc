"""Runs a function when a module has been imported, whenever that happens, without importing it.

For the plugin, which runs in processes that never import what it wants to wrap (workers, engine cores): importing the
API server's modules there would cost each of them half a second, and a failure of such an import the engine.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


def call_after_import(name: str, action: Action) -> None:
    """Call `action(module)` now if the module is imported, else right after its import; once per process and name."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
    elif not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(MetaPathFinder):
    """Finds one module by the other finders and lets its loader call the action."""

    def __init__(self, name: str, action: Action) -> None:
        self.name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, self._action)
                return spec
        return None


class _Loader(Loader):
    """The module's own loader, with the action after it."""

    def __init__(self, inner: Loader, action: Action) -> None:
        self._inner = inner
        self._action = action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._action(module)

    def __getattr__(self, name: str) -> Any:
        # Readers of sources and resources ask the loader for more than loading.
        return getattr(self._inner, name)
