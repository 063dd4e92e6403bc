"""Kubernetes operator that reconciles PDDeployment objects into prefill, decode and router workloads."""
