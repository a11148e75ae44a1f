"""The report: figures, tables and prose that are computed from records, and from nothing else.

Nobody writes down here what was found: each sentence is made by a function that reads records, and says that something
was not measured where there is no record of it.
"""
