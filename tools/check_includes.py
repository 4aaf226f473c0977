#!/usr/bin/env python3
"""Checks who includes whom (docs/ARCHITECTURE.md) in C++ sources of a tree, and who names attention methods.

Usage: check_includes.py [ROOT]      exit 1 and one line per violation when a rule is broken
"""

import re
import sys
from pathlib import Path

# Layer -> layers its files may include besides itself. The longest matching prefix is the layer.
BELOW_MEMORY = {"base", "kernels", "scheduler/attention", "scheduler/kv"}
BELOW_MODELS = BELOW_MEMORY | {"memory"}
BELOW_RUNTIME = BELOW_MODELS | {"models", "models/config", "scheduler"}
ALLOWED = {
    "base": set(),
    "scheduler/attention": {"base"},
    "scheduler/kv": {"base"},
    "scheduler": {"base", "scheduler/attention", "scheduler/kv"},
    "kernels": {"base"},
    "memory": BELOW_MEMORY,
    "models/config": {"base"},
    "models": BELOW_MODELS | {"models/config"},
    "runtime": BELOW_RUNTIME,
    "tools": BELOW_RUNTIME | {"runtime"},
}
# Other places ask functions of scheduler/attention/attention_options.h.
METHOD_ROOMS = ("scheduler/attention/", "models/attention/")
CUDA_LAYERS = ("memory/cuda/", "kernels/cuda/")
CUDA_USERS = ("runtime/gpu_cuda.cpp", "runtime/gpu_operations.cpp", "runtime/gpu_operations.h")
# Headers of base/ may use the standard library only, so that every layer stays light.
PROJECT_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
SYSTEM_INCLUDE = re.compile(r"^\s*#\s*include\s+<([^>]+)>", re.MULTILINE)


def layer_of(path: str) -> str | None:
    matches = [layer for layer in ALLOWED if path == layer or path.startswith(layer + "/")]
    return max(matches, key=len) if matches else None


def violations_of(path: str, text: str) -> list[str]:
    found = []
    layer = layer_of(path)
    if layer is None:
        return found
    for included in PROJECT_INCLUDE.findall(text):
        target = layer_of(included)
        if target is None:
            top = included.split("/")[0]
            if top in ("tests", "bench"):
                found.append(f"{path}: includes {included}: nothing includes {top}/")
            continue
        if target != layer and target not in ALLOWED[layer]:
            found.append(f"{path}: {layer} must not include {included} ({target})")
        if included.startswith(CUDA_LAYERS) and not path.startswith(CUDA_LAYERS) and path not in CUDA_USERS:
            found.append(f"{path}: only runtime/gpu_*.cpp may include {included}")
    if "AttentionKind::" in text and not path.startswith(METHOD_ROOMS):
        found.append(f"{path}: names an AttentionKind:: outside {' and '.join(METHOD_ROOMS)}")
    for included in SYSTEM_INCLUDE.findall(text):
        if included.startswith("cuda") and not path.startswith(CUDA_LAYERS):
            found.append(f"{path}: CUDA header <{included}> outside {' and '.join(CUDA_LAYERS)}")
        if layer == "base" and path.endswith(".h") and ("/" in included or included.endswith(".h")):
            found.append(f"{path}: headers of base/ use the standard library only, found <{included}>")
    return found


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    found = []
    checked = 0
    for top in ("base", "runtime", "scheduler", "memory", "kernels", "models", "tools"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu", ".cuh", ".inl", ".inc"):
                checked += 1
                relative = path.relative_to(root).as_posix()
                found += violations_of(relative, path.read_text(encoding="utf-8"))
    for line in found:
        print(line)
    print(f"{checked} files, {len(found)} violations")
    return 1 if found or checked == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
