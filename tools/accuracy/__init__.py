"""The parts of tools/accuracy_report.py."""
