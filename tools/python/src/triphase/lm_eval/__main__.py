"""The harness's own command, with Triphase among its models."""

import sys

from lm_eval.__main__ import cli_evaluate

import triphase.lm_eval  # noqa: F401  registers the model

try:
    sys.exit(cli_evaluate())
except NotImplementedError as refusal:  # of what the adapter cannot do
    sys.exit(f"triphase.lm_eval: error: {refusal}")
