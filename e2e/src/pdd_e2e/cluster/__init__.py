"""A real Kubernetes for tests: by kind on this machine, or any cluster whose context is on an allow-list.

`python -m pdd_e2e.cluster up` brings it up, `down` takes away what `up` started. It installs nothing of the product.
"""
