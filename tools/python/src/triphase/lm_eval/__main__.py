"""The harness's own command, with Triphase among its models."""

import sys

from lm_eval.__main__ import cli_evaluate

import triphase.lm_eval  # noqa: F401  registers the model

sys.exit(cli_evaluate())
