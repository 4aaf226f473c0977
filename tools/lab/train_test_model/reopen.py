"""Makes a checkpoint of an exported model, to go on from where it shipped.

Run ``python reopen.py --work DIR --name mha --model FOLDER`` after
``python corpus.py --work DIR --tokenizer FOLDER/tokenizer.model``; it writes DIR/NAME-start.pt
and DIR/NAME.pt, from which ``train.py --resume`` goes on.  The optimizer's state is not in an
export, so that momentum starts anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from headstart import match_spread
from model import SHAPES, Llama
from work import parser_of, probe_of, save_start


def reached(model_folder: Path) -> dict[str, float]:
    """The last record of the export's metrics.jsonl."""
    lines = (model_folder / "metrics.jsonl").read_text().splitlines()
    return json.loads(lines[-1])


def reopen(work: Path, name: str, model_folder: Path, progress: float) -> None:
    """Writes the checkpoint, its place in the curriculum set to progress."""
    own, shipped = work / "tokenizer.model", model_folder / "tokenizer.model"
    if own.read_bytes() != shipped.read_bytes():
        raise SystemExit(f"{own} is not {shipped}: run corpus.py with --tokenizer {shipped}")
    model = Llama(SHAPES[name])
    tensors = load_file(model_folder / "model.safetensors")
    model.load_state_dict({key.removeprefix("model."): t.float() for key, t in tensors.items()})
    probe = probe_of(np.load(work / "train.npy"))
    record = reached(model_folder) | {"progress": progress, "minutes": 0.0}
    record["match_spread"] = match_spread(model, probe)
    torch.save({"model": model.state_dict(), "progress": record}, work / f"{name}.pt")
    save_start(work, name, model, record["match_spread"])


def main() -> None:
    """Parses the command line and writes both checkpoints."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--progress", type=float, default=0.5, help="place in the curriculum")
    arguments = parser.parse_args()
    reopen(arguments.work, arguments.name, arguments.model, arguments.progress)


if __name__ == "__main__":
    main()
