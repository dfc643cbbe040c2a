"""`aliquot watch-use`: how much cards are used, by any Prometheus that scrapes dcgm-exporter. It needs no pool, and
nothing of aliquot on the nodes.
"""
