"""How the chart is installed, in words that more than one command prints. A test holds them to the chart's README."""

from typing import Final

INSTALL: Final = (
    "helm install pdd-operator charts/pdd-operator --namespace pdd-system --create-namespace"
    " --set images.registry=REGISTRY"
)
FIRST_IMAGES: Final = "REGISTRY is yours, with the product's images built and pushed to it (docs/install.md, Images)"
UPGRADE: Final = "helm upgrade pdd-operator charts/pdd-operator --namespace pdd-system"
OPERATOR_NAMESPACE: Final = "pdd-system"
