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
        self.assertEqual(result.returncode, 2)
        self.assertIn("pip install jinja2", result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1)
        self.assertFalse((self.folder / "out").exists())

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_a_byte_order_mark_is_no_part_of_the_template(self):
        self.assertEqual(self.convert([chat("hi")]).returncode, 0)
        plain = self.written()
        (self.folder / "model" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8-sig")
        self.assertEqual(self.convert([chat("hi")]).returncode, 0)
        self.assertEqual(self.written(), plain)

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_both_forms(self):
        batch = {"custom_id": "r", "method": "POST", "url": "/v1/chat/completions",
                 "body": chat("hü", model="m", max_completion_tokens=5)}
        result = self.convert([chat("a", "b", id=1, top_p=0.5), "", batch, {"id": 2, "prompt": "as it is"}])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.written(), [
            {"id": 1, "top_p": 0.5, "prompt": "<s>[user]a[user]b[assistant]", "add_special_tokens": False}, None,
            {"custom_id": "r", "method": "POST", "url": "/v1/completions",
             "body": {"model": "m", "max_tokens": 5, "prompt": "<s>[user]hü[assistant]",
                      "add_special_tokens": False}},
            {"id": 2, "prompt": "as it is"}])

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_log_probabilities_of_chats_become_those_of_prompts(self):
        self.convert([chat("a", logprobs=False), chat("a", logprobs=True), chat("a", logprobs=True, top_logprobs=3),
                      chat("a", logprobs=None, top_logprobs=None), chat("a", logprobs=0),
                      {"prompt": "", "logprobs": 2}])
        self.assertEqual([line.get("logprobs", "none") for line in self.written()], ["none", 0, 3, "none", 0, 2])
        self.assertFalse(any("top_logprobs" in line for line in self.written()))

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_options(self):
        self.convert([chat("a")], "--no-generation-prompt")
        self.assertEqual([line["prompt"] for line in self.written()], ["<s>[user]a"])
        self.config({"chat_template": "{{ mood }} {{ add_generation_prompt }}"})
        self.convert([chat("a", chat_template_kwargs={"mood": "calm", "add_generation_prompt": False}), chat("b")])
        self.assertEqual(self.written(), [{"prompt": "calm False", "add_special_tokens": False},
                                          {"prompt": " True", "add_special_tokens": False}])

    def prompts(self, template, *chats):
        """What each chat becomes; of one that is refused, why."""
        self.config({"chat_template": template})
        self.convert(chats)
        return [line.get("prompt", line.get("error", {}).get("message")) for line in self.written()]

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_words_of_templates_mean_what_transformers_has_them_mean(self):
        tools = [{"name": "<é>", "days": [1]}]
        for template, expected in (
                ("{{ tools | tojson }}", '[{"name": "<é>", "days": [1]}]'),
                ("{{ tools | tojson(ensure_ascii=False) }}", '[{"name": "<é>", "days": [1]}]'),
                ("{{ tools | tojson(True) }}", '[{"name": "<\\u00e9>", "days": [1]}]'),
                ("{{ tools | tojson(separators=(',', ':'), sort_keys=True) }}", '[{"days":[1],"name":"<é>"}]'),
                ("{{ tools[0].days | tojson(indent=1) }}", "[\n 1\n]"),
                ("{% generation %}{% set a = 1 %}{{ a }}{% endgeneration %}{{ a }}", "1"),
                ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13")):
            with self.subTest(template):
                self.assertEqual(self.prompts(template, chat("a", tools=tools)), [expected])

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_a_template_of_its_own_for_chats_with_tools(self):
        named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
        self.assertEqual(self.prompts(named, chat("a"), chat("a", tools=[{}]), chat("a", tools=None)),
                         ["plain", "tools", "plain"])
        # transformers 5 saves them as files, which replace the list.
        (self.folder / "model" / "chat_template.jinja").write_text("plain file")
        self.assertEqual(self.prompts(named, chat("a"), chat("a", tools=[{}])), ["plain file", "plain file"])
        (self.folder / "model" / "additional_chat_templates").mkdir()
        (self.folder / "model" / "additional_chat_templates" / "tool_use.jinja").write_text("tools file")
        self.assertEqual(self.prompts(named, chat("a"), chat("a", tools=[{}])), ["plain file", "tools file"])

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_tokens_that_no_file_names_are_the_classes_own(self):
        for config, expected in (
                ({"tokenizer_class": "LlamaTokenizer"}, "<s>,</s>,<unk>,"),
                ({"tokenizer_class": "CodeLlamaTokenizer"}, "<s>,</s>,<unk>,"),
                ({"tokenizer_class": "GemmaTokenizerFast"}, "<bos>,<eos>,<unk>,<pad>"),
                ({"tokenizer_class": "CohereTokenizerFast"}, "<BOS_TOKEN>,<|END_OF_TURN_TOKEN|>,<UNK>,<PAD>"),
                ({"tokenizer_class": "Qwen2Tokenizer"}, ",<|endoftext|>,<|endoftext|>,<|endoftext|>"),
                ({"tokenizer_class": "GPT2Tokenizer"}, "<|endoftext|>,<|endoftext|>,<|endoftext|>,"),
                ({"tokenizer_class": "LlamaTokenizer", "bos_token": None, "eos_token": "E"}, ",E,<unk>,"),
                ({"tokenizer_class": "PreTrainedTokenizerFast"}, ",,,"), ({}, ",,,")):
            with self.subTest(config):
                named = ",".join("{{ %s_token }}" % role for role in ("bos", "eos", "unk", "pad"))
                self.config({"chat_template": named, **config})
                self.convert([chat("a")])
                self.assertEqual([line["prompt"] for line in self.written()], [expected])

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_the_map_wins_over_a_config_without_added_tokens_decoder(self):
        (self.folder / "model" / "special_tokens_map.json").write_text('{"bos_token": "M"}')
        for config, expected in (({}, "M,E"), ({"added_tokens_decoder": {}}, "B,E")):
            self.config({"chat_template": "{{ bos_token }},{{ eos_token }}", "bos_token": "B", "eos_token": "E",
                         **config})
            self.convert([chat("a")])
            self.assertEqual([line["prompt"] for line in self.written()], [expected])

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_null_is_not_given(self):
        template = "{% for m in messages %}{{ m.name }},{{ m.content }},{{ 'name' in m }};{% endfor %}"
        self.assertEqual(self.prompts(template, {"messages": [{"role": "user", "content": None, "name": None}]}),
                         [",,False;"])
        # Templates that do not take a missing content get the null, or an empty text.
        self.assertEqual(self.prompts("{% if messages[0]['content'] is none %}null{% else %}"
                                      "{{ messages[0]['content'] + '!' }}{% endif %}", chat(None)), ["null"])
        self.assertEqual(self.prompts("{{ messages[0]['content'] + '!' }}", chat(None)), ["!"])

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_what_the_assistant_thought_has_each_name(self):
        template = "{{ messages[0].reasoning_content }},{{ messages[0].thinking }}"
        for name in ("reasoning_content", "thinking", "reasoning"):
            self.assertEqual(self.prompts(template, {"messages": [{"role": "assistant", name: "hm"}]}), ["hm,hm"])

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_arguments_of_tool_calls_are_what_the_template_takes(self):
        def call(arguments):
            return {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]}]}

        given = [call('{"a":1}'), call({"a": 1}), call("no JSON"), call("[1]")]
        arguments = "messages[0].tool_calls[0].function.arguments"
        self.assertEqual(self.prompts("{{ %s | tojson }}" % arguments, *given),
                         ['{"a": 1}', '{"a": 1}', '"no JSON"', '"[1]"'])
        self.assertEqual(self.prompts("{{ '' + %s }}" % arguments, *given),
                         ['{"a":1}', '{"a": 1}', "no JSON", "[1]"])

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_a_text_of_arguments_that_the_template_writes_stays_as_it_is(self):
        text = '{"city":"Rome","n":1e3}'
        calls = [{"function": {"name": "f", "arguments": arguments}} for arguments in (text, {"n": 1}, "no JSON")]
        chats = [{"messages": [{"role": "assistant", "tool_calls": [call]}]} for call in calls]
        arguments = "messages[0].tool_calls[0].function.arguments"
        self.assertEqual(self.prompts("{{ %s }}" % arguments, *chats), [text, "{'n': 1}", "no JSON"])
        # As Qwen3's template has it.
        self.assertEqual(self.prompts("{%% if %s is string %%}{{ %s }}{%% else %%}{{ %s | tojson }}{%% endif %%}" % (
            (arguments,) * 3), *chats), [text, '{"n": 1}', "no JSON"])
        # A refused chat says nothing of the others, nor does one without such arguments.
        self.assertEqual(self.prompts("{%% if tools %%}{{ raise_exception('none') }}{%% endif %%}{{ %s }}" % arguments,
                                      {**chats[0], "tools": [{}]}, chats[1], chats[0]),
                         ["chat template: none", "{'n': 1}", text])
        self.assertEqual(self.prompts("{%% for key, value in %s | items %%}{{ key }}={{ value }};{%% endfor %%}"
                                      % arguments, *chats[:2]), ["city=Rome;n=1000.0;", "n=1;"])
        self.assertEqual(self.prompts("{{ messages[0].tool_calls | tojson }}", chats[0]),
                         ['[{"function": {"name": "f", "arguments": {"city": "Rome", "n": 1000.0}}}]'])

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_texts_in_parts(self):
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        for content in ("messages[0].content", "messages[0].content + ''", "messages[0].content | tojson",
                        "messages[0].content if messages[0].content is string"):
            shown = self.prompts("{{ %s }}" % content, chat(parts), chat("one\ntwo"))
            self.assertEqual(shown[0], shown[1], content)
            self.assertIn("one", shown[0])
        reads = "{% for part in messages[0].content %}<{{ part.text }}>{% endfor %}"
        self.assertEqual(self.prompts(reads, chat(parts)), ["<one><two>"])
        picture = [*parts, {"type": "image_url", "image_url": {"url": "data:"}}]
        self.assertEqual(self.prompts(reads, chat(picture)),
                         ["messages: a part of type image_url, expected text; hint: only text is read"])

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_a_bad_line_is_an_error_in_its_place(self):
        result = self.convert([chat("a", id="first"), chat("x", role="robot", id="second"), "{", "[]",
                               {"id": 5, "messages": []}, '{"messages":[{"content":"\\ud800"}]}', "[" * 100_000,
                               chat("b", chat_template_kwargs=[1]), chat("z", id="last")])
        self.assertEqual(result.returncode, 1, result.stderr)
        written = self.written()
        self.assertEqual([line.get("id") for line in written],
                         ["first", "second", None, None, 5, None, None, None, "last"])
        self.assertEqual(written[1]["error"], {"code": "E-IN-CHAT", "message": "chat template: no robots"})
        for number, text in ((2, "chat template: no robots"), (3, "not JSON"), (4, "expected a JSON object"),
                             (5, "messages: expected"), (6, "half of a surrogate"), (7, "not JSON"),
                             (8, "chat_template_kwargs: expected")):
            self.assertIn(f"in:{number}: {text}", result.stderr)
            self.assertIn(text, written[number - 1]["error"]["message"])
        self.assertIn("2 prompts, 7 lines could not be converted", result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 8)
        self.assertTrue(written[-1]["prompt"])

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_a_pipe(self):
        result = subprocess.run([sys.executable, str(SCRIPT), "--model", str(self.folder / "model"), "-", "-"],
                                input=(json.dumps(chat("hü")) + "\n\xff\n").encode("latin-1"),
                                capture_output=True, check=False)
        self.assertEqual(result.returncode, 1)
        first, second = result.stdout.decode().splitlines()
        self.assertEqual(json.loads(first)["prompt"], "<s>[user]hü[assistant]")
        self.assertIn("not JSON", json.loads(second)["error"]["message"])
        self.assertIn(b"stdin:2: not JSON", result.stderr)

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_refusals_are_one_line_and_leave_nothing(self):
        self.config({})
        result = self.convert([chat("x")])
        self.assertEqual(result.returncode, 2)
        self.assertIn("no chat template", result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["in", "model"])

    def test_a_model_that_is_no_folder_is_named(self):
        result = subprocess.run([sys.executable, str(SCRIPT), "--model", "/nowhere", "-", "-"], input="",
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--model: /nowhere, expected a folder", result.stderr)

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_templates_stay_in_the_sandbox(self):
        self.config({"chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"})
        result = self.convert([chat("x")])
        self.assertEqual(result.returncode, 1)
        self.assertIn("chat template", result.stderr)


if __name__ == "__main__":
    unittest.main()
