"""The parts of tools/lab/accuracy_report.py."""
