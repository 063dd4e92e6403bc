"""`pdd doctor`: whether a cluster has what PDDeployments need, and what to do where it has not.

``reader`` fills a ``Snapshot``; everything that judges one is pure.
"""
