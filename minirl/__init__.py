"""minirl: web agents trained by online multi-turn reinforcement learning."""

import os
from importlib.util import find_spec

# Before torch is imported: worker threads that wait for one another spin for some microseconds, then sleep.
# Without spinning an update takes a third longer; with the usual long spinning, and Chromium or anything else
# on the same cores, up to 15 times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# oneDNN keeps its programs by shape, and rows have ever new lengths: 1,024 of them took half a GB.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")

if find_spec("tyro") is None:  # as in the system's own Python: a line says more than a traceback
    raise SystemExit("minirl's packages are not here: `make setup`, then `source .venv/bin/activate`")
