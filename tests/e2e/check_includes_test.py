#!/usr/bin/env python3
"""The include checker passes the repository and reports planted violations.

Usage: check_includes_test.py SOURCE_DIR
"""

import subprocess
import sys
import tempfile
from pathlib import Path

PLANTED = {
    "scheduler/plan.cpp": '#include "memory/memory_pool.h"\n',
    "base/text.h": "#include <fmt/format.h>\n",
    "kernels/ops.h": '#include "memory/memory_pool.h"\n',
    "kernels/cpu/gemm.cpp": "#include <cuda_runtime.h>\n",
    "runtime/engine/engine.cpp": '#include "tests/support/tiny.h"\n',
    "runtime/generate.cpp": "if (kind == AttentionKind::kSwa) return;\n",
    "models/net.cpp": '#include "kernels/cuda/launch.h"\n',
}


def main() -> int:
    source = Path(sys.argv[1])
    checker = source / "tools" / "check_includes.py"
    clean = subprocess.run([sys.executable, checker, source], capture_output=True, text=True)
    print(clean.stdout)
    assert clean.returncode == 0, "the repository breaks its own include rules"
    for path, text in PLANTED.items():
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / path
            target.parent.mkdir(parents=True)
            target.write_text(text)
            result = subprocess.run([sys.executable, checker, folder], capture_output=True, text=True)
            assert result.returncode == 1 and result.stdout.startswith(path), f"{path} was not reported"
    print(f"{len(PLANTED)} planted violations reported")
    return 0


if __name__ == "__main__":
    sys.exit(main())
