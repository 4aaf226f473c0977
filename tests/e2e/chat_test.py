#!/usr/bin/env python3
"""Chats from end to end: `triphase run` on lines with messages and on the OpenAI batch form, whatever
the template does.

    chat_test.py TRIPHASE MODEL     (unittest options may follow)

MODEL has a tokenizer; the templates are the tests' own. Needs python3 with jinja2, as such jobs do. Where
the openai package is installed its own models read the answers.
"""

import importlib.util
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = ""
MODEL = pathlib.Path()
TEMPLATE = ("{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
            "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}")
# What the message asks for is what the template does.
HOSTILE = ("{% set wish = messages[0].content %}"
           "{% if wish == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
           "{% elif wish == 'memory' %}{{ 'x' * 8000000000 }}"
           "{% elif wish == 'escape' %}{{ cycler.__init__.__globals__.os.system('touch escaped') }}"
           "{% elif wish == 'long' %}{{ 'word ' * 300000 }}"
           "{% elif wish == 'refuse' %}{{ raise_exception('not this one') }}"
           "{% else %}{{ wish }}{% endif %}")
HAS_JINJA = subprocess.run(["python3", "-I", "-c", "import jinja2"], check=False, capture_output=True).returncode == 0
HAS_OPENAI = importlib.util.find_spec("openai") is not None
EPOCH = {"SOURCE_DATE_EPOCH": "1700000000"}


def messages(content, role="user"):
    return [{"role": role, "content": content}]


def batch(number, body, url="/v1/chat/completions"):
    return {"custom_id": f"r{number}", "method": "POST", "url": url, "body": {"model": "m", **body}}


def lines(*requests):
    return "".join(json.dumps(request) + "\n" for request in requests)


def openai_lines():
    return lines(batch(0, {"messages": messages("hi"), "logprobs": True, "top_logprobs": 2}),
                 batch(1, {"messages": messages("hi")}),
                 batch(2, {"prompt": "Once upon", "logprobs": 2}, "/v1/completions"),
                 batch(3, {"prompt": ["Once upon", "The end", "Once upon"]}, "/v1/completions"),
                 batch(4, {"messages": messages("hi"), "top_p": 9}))


@unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
class ChatTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="triphase-chats-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "model").mkdir()
        for file in MODEL.iterdir():
            (self.folder / "model" / file.name).symlink_to(file.resolve())
        self.template(TEMPLATE)

    def template(self, text):
        (self.folder / "model" / "chat_template.jinja").write_text(text, encoding="utf-8")

    def command(self, *extra, prompts="in.jsonl", output="out.jsonl"):
        return [PROGRAM, "run", "--model", "model", "--prompts", prompts, "--output", output, "--max-tokens", "8",
                *extra]

    def run_job(self, text, *extra, code=0, env=None, prompts="in.jsonl", output="out.jsonl"):
        """The records, and stderr."""
        if prompts != "-":
            (self.folder / prompts).write_text(text, encoding="utf-8")
        result = subprocess.run(self.command(*extra, prompts=prompts, output=output), cwd=self.folder, check=False,
                                capture_output=True, timeout=300, env={**os.environ, **EPOCH, **(env or {})},
                                input=text.encode() if prompts == "-" else None)
        self.assertEqual(result.returncode, code, result.stderr.decode())
        path = self.folder / output
        records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return records, result.stderr.decode()

    def test_a_chat_is_the_prompt_that_its_template_makes(self):
        records, _ = self.run_job(lines(
            {"id": "chat", "messages": messages("Tell me a story.")},
            {"id": "prompt", "prompt": "<s>user: Tell me a story.\nassistant:", "add_special_tokens": False},
            {"id": "same", "prompt": "user: Tell me a story.\nassistant:"}))
        chat, prompt, same = ({key: record[key] for key in record if key not in ("id", "index")}
                              for record in records)
        self.assertEqual(set(chat), {"text", "tokens", "finish_reason", "usage"})
        self.assertEqual(chat, prompt)
        self.assertEqual(chat["usage"], same["usage"], "one BOS, and it is the token")

    def test_chats_with_tools_have_a_template_of_their_own(self):
        tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
        chat = lines({"messages": messages("Hi"), "tools": tools}, {"messages": messages("Hi")})
        plain, _ = self.run_job(chat)
        (self.folder / "model" / "additional_chat_templates").mkdir()
        template = self.folder / "model" / "additional_chat_templates" / "tool_use.jinja"
        template.write_text("{{ tools[0].function.name }}: " + TEMPLATE, encoding="utf-8")
        _, errors = self.run_job(chat, code=4)
        self.assertIn("chat template", errors, "it belongs to the job")
        records, _ = self.run_job(chat, output="tools.jsonl")
        self.assertGreater(records[0]["usage"]["prompt_tokens"], plain[0]["usage"]["prompt_tokens"])
        self.assertEqual(records[1], plain[1])
        before = template.read_bytes()
        done = subprocess.run(self.command("--overwrite", output=str(template)), cwd=self.folder, check=False,
                              capture_output=True, timeout=300)
        self.assertEqual((done.returncode, template.read_bytes()), (2, before), done.stderr)

    def test_a_byte_order_mark_is_no_part_of_the_template(self):
        chat = lines({"messages": messages("Tell me a story.")})
        plain, _ = self.run_job(chat)
        self.template("\ufeff" + TEMPLATE)
        marked, _ = self.run_job(chat, output="marked.jsonl")
        self.assertEqual(marked, plain)

    def test_a_process_that_cannot_start_is_no_missing_python(self):
        # Root has no limit of processes.
        user = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}
        self.folder.chmod(0o777)
        (self.folder / "in.jsonl").write_text(lines({"messages": messages("a")}), encoding="utf-8")
        try:
            done = subprocess.run(self.command("--threads", "1"), cwd=self.folder, check=False, capture_output=True,
                                  text=True, timeout=300, **user,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)))
        except PermissionError:
            self.skipTest("other users cannot start the program")
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn("E-MEM-THREADS", done.stderr)
        self.assertNotIn("jinja2", done.stderr)

    def test_the_openai_form(self):
        text = openai_lines()
        records, _ = self.run_job(text, "--ignore-eos", code=1)
        bodies = [record["response"]["body"] for record in records]
        chat = bodies[0]
        self.assertEqual((chat["object"], chat["created"], chat["model"]), ("chat.completion", 1700000000, "m"))
        choice = chat["choices"][0]
        self.assertEqual(set(choice["message"]), {"role", "content", "refusal"})
        self.assertEqual(choice["message"]["role"], "assistant")
        tokens = choice["logprobs"]["content"]
        self.assertEqual(len(tokens), 8)
        self.assertEqual(bytes(sum((one["bytes"] for one in tokens), [])).decode(), choice["message"]["content"])
        self.assertTrue(all(len(one["top_logprobs"]) == 2 for one in tokens))
        self.assertIsNone(bodies[1]["choices"][0]["logprobs"])
        self.assertEqual(bodies[1]["choices"][0]["message"], choice["message"])
        plain = bodies[2]["choices"][0]
        for begin, token in zip(plain["logprobs"]["text_offset"], plain["logprobs"]["tokens"]):
            self.assertEqual(plain["text"][begin:begin + len(token)], token)
        listed = bodies[3]
        self.assertEqual([one["index"] for one in listed["choices"]], [0, 1, 2])
        self.assertEqual(listed["choices"][0]["text"], plain["text"])
        self.assertEqual(listed["choices"][2]["text"], plain["text"])
        self.assertEqual(listed["usage"]["completion_tokens"], 24)
        error = bodies[4]["error"]
        self.assertEqual((error["type"], error["param"], error["code"]),
                         ("invalid_request_error", "top_p", "E-IN-PARAM"))
        ids = [value for record in records for value in (record["id"], record["response"]["request_id"])]
        ids += [body["id"] for body in bodies[:4]]
        self.assertEqual(len(set(ids)), len(ids))
        again, _ = self.run_job(text, "--ignore-eos", "--seed", "1", code=1, output="again.jsonl")
        self.assertFalse({record["id"] for record in again} & set(ids), "another job has other ids")

    @unittest.skipUnless(HAS_OPENAI, "the openai package is not installed")
    def test_the_openai_package_reads_the_answers(self):
        from openai.types import Completion, ErrorObject
        from openai.types.chat import ChatCompletion
        records, _ = self.run_job(openai_lines(), "--ignore-eos", code=1)
        for body in (record["response"]["body"] for record in records):
            model = {"chat.completion": ChatCompletion, "text_completion": Completion}.get(body.get("object"))
            read = (model or ErrorObject).model_validate(body if model else body["error"], strict=True)
            self.assertTrue(read)

    def test_shards_make_the_file_of_one_run(self):
        text = lines(*(batch(n, {"messages": messages(f"number {n}"), "logprobs": True}) for n in range(5)),
                     batch(5, {"prompt": ["a", "b"], "temperature": 1}, "/v1/completions"))
        self.run_job(text)
        for shard in ("0/2", "1/2"):
            self.run_job(text, "--shard", shard, output=f"shard{shard[0]}.jsonl")
        subprocess.run([PROGRAM, "merge", "shard0.jsonl", "shard1.jsonl", "--output", "merged.jsonl"], check=True,
                       cwd=self.folder, capture_output=True)
        self.assertEqual((self.folder / "merged.jsonl").read_bytes(), (self.folder / "out.jsonl").read_bytes())

    def test_standard_input(self):
        text = lines({"messages": messages("a")}, batch(1, {"messages": messages("b")}))
        records, _ = self.run_job(text)
        piped, _ = self.run_job(text, prompts="-", output="piped.jsonl")
        self.assertEqual(piped[0], records[0])
        self.assertEqual(piped[1]["response"]["body"]["choices"], records[1]["response"]["body"]["choices"])

    def test_hostile_templates_cost_their_line_alone(self):
        self.template(HOSTILE)
        wishes = ["one", "loop", "two", "memory", "escape", "long", "refuse", "three"]
        records, errors = self.run_job(lines(*({"id": wish, "messages": messages(wish)} for wish in wishes)),
                                       "--max-line-bytes", "100000B", code=1)
        says = {"loop": "too long", "memory": "MemoryError", "escape": "unsafe", "long": "expected at most 100000",
                "refuse": "not this one"}
        for record in records:
            self.assertEqual("error" in record, record["id"] in says, record)
            if "error" in record:
                self.assertEqual(record["error"]["code"], "E-IN-CHAT")
                self.assertIn(says[record["id"]], record["error"]["message"])
        self.assertFalse((self.folder / "escaped").exists())
        self.assertIn("5 failed", errors)

    def test_without_a_template_only_chats_fail(self):
        (self.folder / "model" / "chat_template.jinja").unlink()
        records, _ = self.run_job(lines({"messages": messages("a")}, {"prompt": "b"}), code=1,
                                  env={"PATH": "/nonexistent"})
        self.assertEqual(records[0]["error"]["code"], "E-IN-CHAT")
        self.assertIn("no chat template", records[0]["error"]["message"])
        self.assertIn("text", records[1])

    def test_missing_python_or_jinja2_is_said_before_anything_starts(self):
        (self.folder / "bin").mkdir()
        python = self.folder / "bin" / "python3"
        # -S leaves out site-packages.
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
        python.chmod(0o755)
        chat = lines({"messages": messages("a")})
        for path, says in ((str(self.folder / "bin"), "jinja2"), ("/nonexistent", "No such file")):
            _, errors = self.run_job(chat, code=5, env={"PATH": path})
            self.assertIn("E-MEM-PYTHON", errors)
            self.assertIn(says, errors)
            self.assertIn("apt-get install python3-jinja2", errors)
            self.assertEqual(list(self.folder.glob("out.jsonl*")), [])
        self.run_job(lines({"prompt": "a"}), env={"PATH": "/nonexistent"})

    @staticmethod
    def runs(process):
        try:
            return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    def kill_when_begun(self, *extra, env):
        process = subprocess.Popen(self.command("--sync-every", "0.02s", *extra), cwd=self.folder,
                                   stderr=subprocess.DEVNULL, env={**os.environ, **env})
        part = self.folder / "out.jsonl.part"
        deadline = time.monotonic() + 120
        while not (part.exists() and part.stat().st_size > 0):
            self.assertIsNone(process.poll(), "it ended by itself")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.005)
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.assertEqual(len(children), 1)
        while self.runs(children[0]):
            self.assertLess(time.monotonic(), deadline, "the helper outlives the program")
            time.sleep(0.01)

    def test_a_killed_job_goes_on_with_its_own_date_and_template(self):
        self.template("{{ strftime_now('%d %B %Y') }} " + TEMPLATE)
        text = lines(*({"id": n, "messages": messages(f"number {n}"), "max_tokens": 30} if n % 2 else
                       batch(n, {"messages": messages(f"number {n}"), "max_tokens": 30}) for n in range(300)))
        expected, _ = self.run_job(text, "--ignore-eos", output="expected.jsonl")
        self.assertEqual(len(expected), 300)
        self.kill_when_begun("--ignore-eos", env=EPOCH)
        self.template("another {{ strftime_now('%Y') }}")
        _, errors = self.run_job(text, "--ignore-eos", code=4)
        self.assertIn("chat template: ", errors)
        self.assertIn("E-IN-MANIFEST", errors)
        self.template("{{ strftime_now('%d %B %Y') }} " + TEMPLATE)
        _, errors = self.run_job(text, "--ignore-eos", env={"SOURCE_DATE_EPOCH": "1"})
        self.assertIn("resuming", errors)
        self.assertEqual((self.folder / "out.jsonl").read_bytes(), (self.folder / "expected.jsonl").read_bytes())

    def test_a_stop_does_not_wait_for_a_template(self):
        self.template(HOSTILE)
        (self.folder / "in.jsonl").write_text(lines({"messages": messages("loop")}))
        process = subprocess.Popen(self.command(), cwd=self.folder, stderr=subprocess.PIPE)
        self.addCleanup(process.stderr.close)
        deadline = time.monotonic() + 120
        while not (self.folder / "out.jsonl.manifest.json").exists():
            self.assertIsNone(process.poll(), "it ended by itself")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=5), -signal.SIGTERM)
        self.assertEqual((self.folder / "out.jsonl.part").read_bytes(), b"", "no record of a line that was cut short")

    def test_a_dry_run_tries_the_template(self):
        self.template(HOSTILE)
        (self.folder / "in.jsonl").write_text(lines({"messages": messages("refuse")}, {"messages": messages("x")}))
        result = subprocess.run(self.command("--dry-run"), cwd=self.folder, check=False, capture_output=True)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"not this one", result.stderr)
        self.assertIn(b"1 of 2 lines", result.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    MODEL = pathlib.Path(sys.argv.pop(1))
    unittest.main()
