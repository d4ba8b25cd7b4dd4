"""minirl: web agents trained by online multi-turn reinforcement learning."""

import os

# Before torch is imported: waiting worker threads sleep instead of spinning. With Chromium, or anything
# else, on the same cores, spinning made an update up to 15 times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
