"""Capture: clocks and draws inside the user's calls become entries of the log, without the user doing anything.

Functions of the standard library and of numpy are replaced by stand-ins that ask `here` whether this thread is running
a call of the user. If it is, what they say is recorded, or in a replay recalled; otherwise they are the real ones.
"""
