"""Measurements that anyone can repeat; each prints a table and can write JSON."""
