"""Rows of the table, one module a room of the library; each has a list `CASES`."""
