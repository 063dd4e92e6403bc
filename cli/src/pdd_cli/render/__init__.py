"""`pdd render`: what the operator makes of a PDDeployment, without a cluster. All but ``command`` is pure."""
