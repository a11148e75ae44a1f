"""Ray's side: hosts, drivers, the coordinator and the store's replica as Ray actors. It translates, and never decides.

Only this folder imports ray, and only `control_plane.py` and `options.py` touch private parts of it.
"""
