"""Layer 1: from a PDDeployment to Kubernetes objects. Pure; same input, same bytes."""

from pdd_operator.render.catalog import UnsupportedError
from pdd_operator.render.manifests import render
from pdd_operator.render.revision import revision_of

__all__ = ["UnsupportedError", "render", "revision_of"]
