"""Benchmark of claims on real engines: how long an owner takes to answer, and what being read costs it."""
