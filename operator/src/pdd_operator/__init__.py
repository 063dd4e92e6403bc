"""Kubernetes operator that reconciles PDDeployment objects into prefill, decode and router workloads."""

from typing import Final

__version__: Final = "0.1.0"
"""As in pyproject.toml."""
