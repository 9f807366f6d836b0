"""Ranks and time: the cluster, shared memory, and what runs on every rank."""
