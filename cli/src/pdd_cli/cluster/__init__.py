"""How commands reach a cluster: kubeconfig and context as kubectl has them, reading only, never longer than a deadline."""
