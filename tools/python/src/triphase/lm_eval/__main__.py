"""The harness's own command, with Triphase among its models."""

import sys

from lm_eval.__main__ import cli_evaluate

import triphase.lm_eval  # registers the model

try:
    sys.exit(cli_evaluate())
except triphase.lm_eval.Unsupported as refusal:
    sys.exit(f"triphase.lm_eval: error: {refusal}")
