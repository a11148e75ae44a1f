"""Ray programs that survive `kill -9`: each call applied exactly once, with no wait for a log on the way of a call.

Importing this package is cheap and loads no Ray: the protocol, its simulator and the test kit run without a cluster.
"""

__version__ = "0.1.0.dev0"

__all__ = ["__version__"]
