"""A real control plane on one machine, without kubelet: what the CRD, the operator and the chart are judged against.

`LocalControlPlane` runs etcd, kube-apiserver and kube-controller-manager; `pdd_e2e.control_plane.fixtures` gives it to pytest. Knows nothing
of PDDeployment, the operator or the router.
"""
