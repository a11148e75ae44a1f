"""The jobs that people submit to a cluster: Spark stages and Ray actors in one program, under one lineage.

A job here uses what any user has, the public API of `lineage_stash`, its `on_spark` stages and pyspark. It reaches into
nothing else, so it also shows that the public API is enough.
"""
