"""Layer 2: the API server. The only package that imports ``kubernetes``."""
