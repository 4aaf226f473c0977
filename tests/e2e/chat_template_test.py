#!/usr/bin/env python3
"""tools/apply_chat_template.py: prompts from chats, and clear refusals. Parts that need jinja2 are
skipped where it is missing."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "tools" / "apply_chat_template.py"
TEMPLATE = ("{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}"
            "{% if message['role'] == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
            "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}")
HAS_JINJA = importlib.util.find_spec("jinja2") is not None


def chat(*contents, role="user", **more):
    return {"messages": [{"role": role, "content": content} for content in contents], **more}


class ChatTemplateTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="triphase-chat-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "model").mkdir()
        self.config({"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}})

    def config(self, content):
        (self.folder / "model" / "tokenizer_config.json").write_text(json.dumps(content))

    def convert(self, lines, *extra, isolated=False):
        (self.folder / "in").write_text("".join(
            (line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        python = [sys.executable, *(["-S", "-E"] if isolated else [])]
        return subprocess.run([*python, str(SCRIPT), "--model", str(self.folder / "model"), *extra,
                               str(self.folder / "in"), str(self.folder / "out")],
                              capture_output=True, text=True, check=False)

    def written(self):
        return [json.loads(line) if line else None
                for line in (self.folder / "out").read_text().split("\n")[:-1]]

    def test_says_when_jinja2_is_missing(self):
        # -S leaves out site-packages, so that it is missing for certain.
        result = self.convert([chat("hi")], isolated=True)
        if result.returncode == 0:
            self.skipTest("jinja2 is part of this Python's own library path")
        self.assertEqual(result.returncode, 1)
        self.assertIn("pip install jinja2", result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1)
        self.assertFalse((self.folder / "out").exists())

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_both_forms(self):
        batch = {"custom_id": "r", "method": "POST", "url": "/v1/chat/completions",
                 "body": chat("hü", model="m", max_completion_tokens=5)}
        result = self.convert([chat("a", "b", id=1, top_p=0.5), "", batch, {"id": 2, "prompt": "as it is"}])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.written(), [
            {"id": 1, "top_p": 0.5, "prompt": "[user]a[user]b[assistant]"}, None,
            {"custom_id": "r", "method": "POST", "url": "/v1/completions",
             "body": {"model": "m", "max_tokens": 5, "prompt": "[user]hü[assistant]"}},
            {"id": 2, "prompt": "as it is"}])

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_options(self):
        self.convert([chat("a")], "--keep-bos", "--no-generation-prompt")
        self.assertEqual(self.written(), [{"prompt": "<s>[user]a"}])

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_refusals_are_one_line_and_leave_nothing(self):
        for lines, text in (([chat("x", role="robot")], "in:1: chat template: no robots"),
                            ([chat("x"), "{"], "in:2: not JSON"),
                            ([{"messages": "x"}], "in:1: messages"), (["[]"], "in:1: expected a JSON object")):
            result = self.convert(lines)
            self.assertEqual(result.returncode, 1)
            self.assertIn(text, result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1)
            self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["in", "model"])
        self.config({})
        self.assertIn("no chat template", self.convert([chat("x")]).stderr)

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_templates_stay_in_the_sandbox(self):
        self.config({"chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"})
        result = self.convert([chat("x")])
        self.assertEqual(result.returncode, 1)
        self.assertIn("chat template", result.stderr)


if __name__ == "__main__":
    unittest.main()
