"""Tests run the sources, whose rules they break on purpose, unless the environment asks for the compiled form."""

import os

os.environ.setdefault("LINEAGE_STASH_PURE", "1")
