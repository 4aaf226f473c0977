"""A finished job made unfinished again, for tests of what a resumed job keeps."""

import json


def forget_records(output, kept):
    """All but the first `kept` records of OUT become error records, which --retry-failed redoes."""
    lines = output.read_text(encoding="utf-8").splitlines(keepends=True)
    forgotten = [json.dumps({"index": json.loads(line)["index"],
                             "error": {"code": "E-FORGOTTEN", "message": "by the test"}}) + "\n"
                 for line in lines[kept:]]
    output.write_text("".join(lines[:kept] + forgotten), encoding="utf-8")
