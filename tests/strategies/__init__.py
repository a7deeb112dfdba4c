"""Trainings that must come out the same on any number of devices, on both backends.

`python -m strategies FOLDER` trains what it is told in one process, by the strategy that it is
told, and leaves weights and figures in a folder; `processes` starts it, `matrix` compares.
"""
