"""Mistakes put into the product one at a time, by cosmic-ray's operators, and which of them the tests notice.

`python -m tools.mutating --help` (`make mutate`), docs/testing.md and decision 0034.
"""
