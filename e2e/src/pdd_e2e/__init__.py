"""Fake engine, fault injection and end-to-end tests."""
