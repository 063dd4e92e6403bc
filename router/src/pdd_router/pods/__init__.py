"""Discovery on Kubernetes: which pods are engines, learned by watching the API server."""
