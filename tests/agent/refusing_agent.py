"""An agent whose NVML refuses the MIG instance of a number, as long as the file that `TEST_REFUSES` names has one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pynvml

from aliquot.agent.main import main


def _refuse(refused: Path) -> None:
    real = pynvml.nvmlDeviceGetMigDeviceHandleByIndex

    def handle(card: Any, number: int) -> Any:
        if refused.exists() and refused.read_text() == str(number):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return real(card, number)

    pynvml.nvmlDeviceGetMigDeviceHandleByIndex = handle


if __name__ == "__main__":
    _refuse(Path(os.environ["TEST_REFUSES"]))
    sys.exit(main(sys.argv[1:]))
