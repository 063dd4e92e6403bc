"""Mechanism Retain: upstream's handles, with proof, single use and a cap. Everything but `scheduler` is pure."""
