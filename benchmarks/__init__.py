"""Speed and memory of the project, beside NeMo Curator and beside raw reading and writing: ``python -m
benchmarks``.
"""
