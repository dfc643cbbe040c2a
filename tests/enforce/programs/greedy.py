"""Takes more of its device than its lease has, by the way that it is told, and holds it until it is killed.

greedy.py WAY BYTES
"""

import os
import signal
import sys
import time

from aliquot.common.cuda import Driver
from bench.lib.cuda_ways import WAYS

if os.environ.pop("LD_PRELOAD", None):
    os.execv(sys.executable, [sys.executable, "-m", "tests.enforce.programs.greedy", *sys.argv[1:]])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = WAYS[sys.argv[1]](Driver(0), int(sys.argv[2]))
time.sleep(3600)
