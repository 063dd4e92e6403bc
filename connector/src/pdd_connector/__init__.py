"""vLLM KV connector that claims KV blocks by hash from any engine, proves them and pins nothing."""
