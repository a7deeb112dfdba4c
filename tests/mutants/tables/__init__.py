"""The mutants of each module."""
