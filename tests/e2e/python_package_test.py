#!/usr/bin/env python3
"""The Python package as a user has it: its wheel, made from a built program, in an empty virtual environment.

    python_package_test.py TRIPHASE          (unittest options may follow)

No network; the shipped model. Chats need jinja2 in this Python.
"""

import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "models" / "shipped" / "triphase-mha"
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"
HAS_JINJA = all(importlib.util.find_spec(name) for name in ("jinja2", "markupsafe"))
# As much of lm-evaluation-harness as the adapter touches.
HARNESS = {
    "__init__.py": "",
    "api/__init__.py": "",
    "api/registry.py": "def register_model(*_):\n    return lambda model: model\n",
    "api/model.py": """
        import types
        class LM:
            def __init__(self):
                self.cache_hook = types.SimpleNamespace(add_partial=lambda *_: None)
        """}
PROGRAM = ""


class PythonPackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="triphase-package-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        subprocess.run([sys.executable, ROOT / "tools" / "python" / "build_wheel.py", PROGRAM, cls.folder / "wheel"],
                       check=True, stdout=subprocess.DEVNULL)
        cls.wheel = next((cls.folder / "wheel").glob("*.whl"))
        subprocess.run([sys.executable, "-m", "venv", cls.folder / "venv"], check=True)
        cls.python = cls.folder / "venv" / "bin" / "python3"
        subprocess.run([cls.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index",
                        "--no-deps", cls.wheel], check=True)
        # Only what the environment says: no checkout, no other program, no settings of the caller's.
        cls.scratch = cls.folder / "scratch"
        cls.scratch.mkdir()
        cls.environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(cls.scratch), "MODEL": str(MODEL),
                           "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(cls.folder / "cache"))}

    def script(self, text):
        return [self.python, "-c", "from triphase import *\nimport os\nMODEL = os.environ['MODEL']\n" +
                textwrap.dedent(text)]

    def python_prints(self, text, **environment):
        """What the script printed, a line of JSON each; nothing of the program may stay behind."""
        result = subprocess.run(self.script(text), cwd=self.folder, env={**self.environment, **environment},
                                capture_output=True, text=True, check=False, timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(list(self.scratch.iterdir()), [])
        return [json.loads(line) for line in result.stdout.splitlines()]

    def harness_script(self, text):
        """A script in which `ask(method, *arguments, **model_args)` asks as the harness does."""
        for name, content in HARNESS.items():
            file = self.folder / "harness" / "lm_eval" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(content))
        return """
            import json, sys, types
            sys.path.insert(0, "harness")
            from triphase.lm_eval import TriphaseLM
            def ask(method, *requests, **options):
                model = TriphaseLM(pretrained=MODEL, **options)
                return getattr(model, method)([types.SimpleNamespace(args=request) for request in requests])
            """ + text

    def harness_prints(self, text):
        return self.python_prints(self.harness_script(text))

    def program_records(self, command, requests, *options):
        name = "--prompts" if command == "run" else "--requests"
        result = subprocess.run([PROGRAM, command, "--model", MODEL, name, "-", "--output", "-", "--quiet", *options],
                                input="".join(json.dumps(line) + "\n" for line in requests), capture_output=True,
                                text=True, check=True)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def test_the_command_is_the_program(self):
        command = self.folder / "venv" / "bin" / "triphase"
        ours, built = (subprocess.run([program, "--version"], env=self.environment, capture_output=True, check=True)
                       for program in (command, PROGRAM))
        self.assertEqual(ours.stdout, built.stdout)
        wrong = subprocess.run([command, "frobnicate"], env=self.environment, capture_output=True, text=True, check=False)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("[E-CLI-COMMAND]", wrong.stderr)
        outside = subprocess.run(["ldd", next(self.folder.glob("venv/lib/*/site-packages/triphase/bin/triphase"))],
                                 capture_output=True, text=True, check=True).stdout
        outside = [line.split()[0] for line in outside.splitlines() if str(self.folder) not in line]
        self.assertLessEqual({os.path.basename(name).split(".")[0] for name in outside},
                             {"linux-vdso", "ld-linux-x86-64", "libc", "libm", "libpthread", "libdl", "librt"})

    def test_answers_are_the_programs_in_order(self):
        prompts = [{"prompt": f"Once upon a time there were {n}", "max_tokens": 1 + n % 7} for n in range(50)]
        expected = self.program_records("run", prompts, "--attention", "sparq", "--logprobs", "1")
        answers = self.python_prints(f"""
            import json
            prompts = {prompts!r}
            with LLM(MODEL, attention="sparq", device_memory="1GiB") as llm:
                for call in range(2):
                    answers = llm.generate([prompt["prompt"] for prompt in prompts],
                                           [SamplingParams(max_tokens=prompt["max_tokens"], logprobs=1)
                                            for prompt in prompts])
                    for answer in answers:
                        one = answer.outputs[0]
                        print(json.dumps([answer.index, answer.prompt, one.text, one.token_ids, one.finish_reason,
                                          [row[token].logprob for row, token in zip(one.logprobs, one.token_ids)],
                                          answer.num_prompt_tokens]))
            """)
        self.assertEqual(answers, 2 * [
            [record["index"], prompt["prompt"], record["text"], record["tokens"], record["finish_reason"],
             [one["logprob"] for one in record["logprobs"]], record["usage"]["prompt_tokens"]]
            for prompt, record in zip(prompts, expected)])

    def test_a_bad_prompt_loses_no_other(self):
        answers = self.python_prints("""
            import json
            llm = LLM(MODEL, max_tokens=3)
            for answer in llm.generate(["Once", 5, [1, 403], {"prompt": "The", "max_tokens": 2}, ["The"], "a " * 9999]):
                print(json.dumps([len(answer.outputs[0].token_ids) if answer.outputs else None,
                                  answer.error and answer.error.code]))
            print(json.dumps(llm.generate("Once", SamplingParams(top_k=-1))[0].index))
            print(json.dumps(len(llm.generate([]))))
            """)
        self.assertEqual(answers, [[3, None], [None, "E-IN-TYPE"], [3, None], [2, None], [None, "E-IN-TOKEN"],
                                   [None, "E-IN-CONTEXT"], 0, 0])

    def test_a_warning_counts_the_requests_of_its_call(self):
        warnings = self.python_prints("""
            import json, logging, time
            messages = []
            class Kept(logging.Handler):
                def emit(self, record):
                    messages.append(record.getMessage())
            logging.getLogger("triphase").addHandler(Kept())
            with LLM(MODEL, max_tokens=1) as llm:
                llm.generate(["a"] * 19)
                llm.generate(["a", 5, 6])
                while not any("E-IN-TYPE" in message for message in messages):  # another thread reads them
                    time.sleep(0.01)
                llm.generate([5])
            print(json.dumps([message for message in messages if "failed" in message]))
            """)
        self.assertRegex(warnings[0][0], "^the request of index 1 failed, E-IN-TYPE: .*; its answer says so, others "
                                         "are not named$")
        self.assertEqual(len(warnings[0]), 1)

    def test_scores_are_the_programs(self):
        requests = [{"context": "Once upon a", "continuation": " time"}, {"text": "A whole text"},
                    {"context": "", "continuation": ""}, {"context_tokens": [1, 403], "continuation_tokens": [931]}]
        expected = self.program_records("score", requests[:2] + requests[3:], "--token-logprobs")
        scores = self.python_prints("""
            import json
            llm = LLM(MODEL, max_tokens=2)
            llm.generate("Once")
            for score in llm.score([("Once upon a", " time"), "A whole text", ("", ""), ([1, 403], [931])]):
                print(json.dumps([score.logprob, score.is_greedy, score.token_ids, score.token_logprobs] if not
                                 score.error else score.error.code))
            print(json.dumps(llm.score(("Once upon a", " time"))[0].logprob))
            """)
        self.assertEqual(scores[2], "E-IN-EMPTY")
        self.assertEqual(scores[:2] + scores[3:4], [[record[name] for name in ("logprob", "is_greedy", "tokens",
                                                                               "token_logprobs")] for record in expected])
        self.assertEqual(scores[4], expected[0]["logprob"])

    def test_what_a_prompt_says_wins_under_each_name(self):
        answers = self.python_prints("""
            import json
            llm = LLM(MODEL, ignore_eos=True)
            prompts = [{"prompt": "a", name: 3} for name in ("max_tokens", "max_new_tokens", "max_completion_tokens")]
            for params in (None, SamplingParams(max_tokens=2), [SamplingParams(max_tokens=2)] * 3):
                print(json.dumps([len(answer.outputs[0].token_ids) for answer in llm.generate(prompts, params)]))
            """)
        self.assertEqual(answers, 3 * [[3, 3, 3]])

    def test_calls_may_repeat_ids(self):
        answers = self.python_prints("""
            import json
            llm = LLM(MODEL, max_tokens=1)
            for ask in (llm.generate, llm.generate, llm.score, llm.score):
                print(json.dumps([str(answer.error) for answer in ask([{"id": 7, "prompt": "a", "text": "a b"}])]))
            """)
        self.assertEqual(answers, 4 * [["None"]])

    def test_one_prompt_or_request_may_be_token_ids(self):
        answers = self.python_prints("""
            import json, numbers
            class Whole:  # as numpy's
                def __init__(self, value):
                    self.value = value
                def tolist(self):
                    return self.value
            numbers.Integral.register(Whole)
            llm = LLM(MODEL, max_tokens=2)
            ids = [1, 403]
            for prompts in (ids, [ids], tuple(ids), [Whole(token) for token in ids]):
                print(json.dumps([answer.outputs[0].token_ids for answer in llm.generate(prompts)]))
            for requests in ([(ids, [931, 727])], (ids, [931, 727]), [{"text_tokens": ids}], ids, [ids],
                             [[Whole(token) for token in ids]], [ids, [931, 727]], [(ids, [931, 727])] * 2):
                print(json.dumps([score.logprob for score in llm.score(requests)]))
            """)
        self.assertEqual(answers[0:4], 4 * answers[0:1])
        pair, text = answers[4], answers[6]
        self.assertEqual(answers[5], pair)
        self.assertEqual(answers[7:10], 3 * [text])
        self.assertEqual([len(scores) for scores in answers[10:]], [2, 2])
        self.assertEqual([answers[10][0], answers[11]], [text[0], 2 * pair])

    def chat_model(self):
        """The shipped model with a chat template, and jinja2 for it."""
        model = self.folder / "chat-model"
        shutil.copytree(MODEL, model, dirs_exist_ok=True)
        (model / "chat_template.jinja").write_text(TEMPLATE)
        packages = next((self.folder / "venv" / "lib").glob("*/site-packages"))
        for name in ("jinja2", "markupsafe"):
            source = pathlib.Path(importlib.util.find_spec(name).origin).parent
            shutil.copytree(source, packages / name, dirs_exist_ok=True)
        return model

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_chats_run_by_the_environments_jinja2(self):
        model = self.chat_model()
        answers = self.python_prints("""
            import json
            llm = LLM(MODEL, max_tokens=4)
            chats = [[{"role": "user", "content": text}] for text in ("hi", "ho")]
            print(json.dumps([answer.outputs[0].text for answer in llm.chat(chats)]))
            print(json.dumps([answer.outputs[0].text for answer in llm.chat(chats[1])]))
            print(json.dumps([answer.outputs[0].text for answer in
                              llm.generate(["user: hi\\nassistant:", "user: ho\\nassistant:"],
                                           SamplingParams(add_special_tokens=False))]))
            """, MODEL=str(model))
        self.assertEqual(answers[0], answers[2])
        self.assertEqual(answers[1], answers[2][1:])

    def test_scores_leave_out_options_of_run_alone(self):
        answers = self.python_prints("""
            import json
            llm = LLM(MODEL, max_tokens=2, recompute="off", trace="trace.json", predict=True, miss_rate=0.5,
                      emulate_link="20GB/s", profile="t4", plan_force=True, plan_strict=True)
            print(json.dumps(llm.score("a text")[0].error))
            """)
        self.assertEqual(answers, [None])

    def test_the_harness_says_how_to_generate(self):
        sampled = {"temperature": 5.0, "seed": 3}
        expected = [{"max_tokens": 2}, {"max_tokens": 3}, {"max_tokens": 4}, {"max_tokens": 5}, {"max_tokens": 256},
                    {"max_tokens": 8, **sampled}, {"max_tokens": 8, "seed": 3, "temperature": 1},
                    {"max_tokens": 8, **sampled, "top_k": 0, "min_p": 0.5}, {"max_tokens": 8}, {"max_tokens": 8},
                    {"max_tokens": 8, "repetition_penalty": 9}]
        expected = self.program_records("run", [{"prompt": "Once upon", "stop": ".", **fields} for fields in expected])
        self.assertEqual(len({record["text"] for record in expected[5:]}), 5, "each is drawn in a way of its own")
        answers = self.harness_prints("""
            print(json.dumps(ask("generate_until", *[("Once upon", {"until": ["", "."], **wanted}) for wanted in (
                {"max_gen_toks": 2, "max_new_tokens": 9}, {"max_new_tokens": 3, "do_sample": False},
                {"max_tokens": 4}, {"max_completion_tokens": 5, "max_gen_toks": None}, {},
                {"max_tokens": 8, "temperature": 5.0, "seed": 3}, {"max_tokens": 8, "do_sample": True, "seed": 3},
                {"max_tokens": 8, "temperature": 5, "seed": 3, "top_k": -1, "min_p": 0.5},
                {"max_tokens": 8, "temperature": 5, "do_sample": False, "top_k": -1, "top_p": 0},
                {"max_tokens": 8, "temperature": 0.0}, {"max_tokens": 8, "repetition_penalty": 9})])))
            try:
                ask("generate_until", ("a", {"presence_penalty": 1.5}))
            except RuntimeError as error:
                print(json.dumps("presence_penalty" in str(error)))
            """)
        self.assertEqual(answers, [[record["text"] for record in expected], True])

    def test_the_harness_gets_all_answers_in_an_array(self):
        answers = self.python_prints(self.harness_script("""
            print(json.dumps(len(ask("generate_until", *[("a", {"max_gen_toks": 1})] * 4))))
            print(json.dumps(len(ask("loglikelihood", ("a", " b"), ("a", " c"), ("a", " d")))))
            """), OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2")
        self.assertEqual(answers, [4, 3])

    def test_evaluations_of_several_models_share_a_folder(self):
        answers = self.harness_prints("""
            for model in (MODEL, MODEL + "/../triphase-gqa", MODEL):
                MODEL = model
                print(json.dumps(ask("generate_until", ("Once upon", {"max_gen_toks": 3}), keep="kept")))
            """)
        self.assertEqual(answers[0], answers[2])
        self.assertNotEqual(answers[0], answers[1])

    def test_the_harness_gets_texts_with_every_line_end(self):
        program = self.folder / "separating"
        program.write_text(textwrap.dedent(f"""\
            #!{sys.executable}
            import json, sys
            options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
            with open(options["--output"], "w", encoding="utf-8") as output:
                for index, line in enumerate(open(options["--prompts"], encoding="utf-8")):
                    record = {{"index": index, "text": json.loads(line)["prompt"] + "\\u2028\\x85|\\u2029\\r\\n"}}
                    output.write(json.dumps(record, ensure_ascii=False) + "\\n")
            """))
        program.chmod(0o755)
        answers = self.harness_prints("""
            print(json.dumps(ask("generate_until", ("a", {}), ("b", {}), program="./separating")))
            """)
        self.assertEqual(answers, [[f"{prompt}\u2028\x85|\u2029\r\n" for prompt in "ab"]])

    def test_the_harness_gets_the_programs_errors(self):
        answers = self.harness_prints("""
            try:
                ask("generate_until", ("a", {}), ("b" * 2 ** 20, {}), extra="--max-line-bytes 64KiB")
            except RuntimeError as error:
                print(json.dumps(str(error)))
            """)
        self.assertRegex(answers[0], r"^request 1: .*\[E-IN-[A-Z]+\]$")

    def test_refusals_carry_the_programs_line(self):
        subprocess.run([PROGRAM, "plan", "--model", MODEL, "--input-len", "9", "--output-len", "9", "--output",
                        self.folder / "plan.json"], check=True, capture_output=True)
        answers = self.python_prints("""
            import json
            def refusal(make):
                try:
                    make()
                except Exception as error:
                    print(json.dumps([type(error).__name__, getattr(error, "code", None),
                                      getattr(error, "exit_code", None), str(error)]))
            refusal(lambda: LLM("/nowhere"))
            refusal(lambda: LLM(MODEL, atention="sparq"))
            refusal(lambda: LLM(MODEL, device_memory="8GB"))
            refusal(lambda: LLM(MODEL, output="out.jsonl"))
            refusal(lambda: LLM(MODEL, program="/nowhere"))
            refusal(lambda: LLM(MODEL, plan="plan.json", plan_force=True).score("text"))
            refusal(lambda: SamplingParams(n=2))
            """)
        self.assertEqual([answer[:3] for answer in answers],
                         [["TriphaseError", "E-CFG-DIR", 3], ["OptionError", "E-CLI-OPTION", 2],
                          ["OptionError", "E-CLI-OPTION", 2], ["TypeError", None, None],
                          ["FileNotFoundError", None, None], ["OptionError", "E-CLI-OPTION", 2],
                          ["TypeError", None, None]])
        self.assertIn("did you mean --attention?", answers[1][3])
        self.assertIn("8GiB", answers[2][3])

    def test_errors_cross_processes(self):
        answers = self.python_prints("""
            import copy, json, pickle
            for kind in (TriphaseError, OptionError):
                error = kind("triphase: error: --x: 1, expected 2 [E-CLI-OPTION]", 2)
                for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
                    print(json.dumps(type(other) is kind and vars(other) == vars(error) and str(other) == error.line))
            """)
        self.assertEqual(answers, 4 * [True])

    def test_the_environment_contradicts_nothing(self):
        for name in ("VERBOSE", "DRY_RUN", "OVERWRITE", "RETRY_FAILED"):
            answers = self.python_prints("print(len(LLM(MODEL, max_tokens=1).generate('a')))", **{"TRIPHASE_" + name: "1"})
            self.assertEqual(answers, [1], name)
        answers = self.python_prints(self.harness_script("""
            print(json.dumps(len(ask("generate_until", ("a", {"max_gen_toks": 1})))))
            """), TRIPHASE_VERBOSE="1", TRIPHASE_DRY_RUN="1")
        self.assertEqual(answers, [1])

    def test_closing_does_not_wait_for_a_forked_process(self):
        answers = self.python_prints("""
            import signal, time
            llm = LLM(MODEL, max_tokens=1)
            llm.generate("a")
            worker = os.fork()  # holds the pipe to the program, too
            if worker == 0:
                time.sleep(60)
                os._exit(0)
            started = time.monotonic()
            llm.close()
            print(time.monotonic() - started)
            os.kill(worker, signal.SIGKILL)
            """)
        self.assertLess(answers[0], 10)

    def test_answers_arrive_and_closing_stops_the_program(self):
        answers = self.python_prints("""
            import json
            def lines():
                for n in range(10 ** 9):
                    yield f"line {n}"
            llm = LLM(MODEL, max_tokens=2)
            answers = llm.generate_iter(lines())
            first = next(answers)
            print(json.dumps([first.prompt == f"line {first.index}", len(first.outputs[0].token_ids)]))
            try:
                llm.generate("meanwhile")
            except RuntimeError as error:
                print(json.dumps("not finished" in str(error)))
            answers.close()
            print(json.dumps(len(os.listdir(os.environ["TMPDIR"]))))
            print(json.dumps(len(llm.generate(["again"] * 3))))
            def broken():
                yield "one"
                raise KeyError("the caller's own")
            try:
                llm.generate(broken())
            except KeyError as error:
                print(json.dumps(str(error)))
            # More than any pipe holds, both ways.
            print(json.dumps(len(llm.generate([" word" * 1500] * 200, SamplingParams(max_tokens=1, logprobs=20)))))
            """)
        self.assertEqual(answers, [[True, 2], True, 0, 3, "\"the caller's own\"", 200])

    def test_calls_of_several_threads_start_one_program(self):
        answers = self.python_prints("""
            import json, pathlib, threading
            llm = LLM(MODEL, max_tokens=1)
            barrier = threading.Barrier(8)
            def ask():
                barrier.wait()
                try:
                    ends.append(len(llm.generate("a")))
                except RuntimeError as error:
                    ends.append("not finished" in str(error))
            def programs():
                tasks = pathlib.Path("/proc/self/task").glob("*/children")
                return sum(len(task.read_text().split()) for task in tasks)
            for command in range(3):
                ends = []
                threads = [threading.Thread(target=ask) for _ in range(8)]
                for thread in threads: thread.start()
                for thread in threads: thread.join()
                print(json.dumps([all(ends), programs()]))
                llm.close()
                print(json.dumps(programs()))
            """)
        self.assertEqual(answers, 3 * [[True, 1], 0])

    def test_a_killed_program_is_an_error_and_the_next_call_goes_on(self):
        answers = self.python_prints("""
            import json, signal
            llm = LLM(MODEL, max_tokens=2)
            answers = llm.generate_iter(f"line {n}" for n in range(10 ** 9))
            next(answers)
            os.kill(llm._running.child._process.pid, signal.SIGTERM)
            try:
                list(answers)
            except TriphaseError as error:
                print(json.dumps(error.exit_code))
            print(json.dumps(len(llm.generate("again"))))
            """)
        self.assertEqual(answers, [-signal.SIGTERM, 1])

    def test_an_interrupt_stops_the_program(self):
        process = subprocess.Popen(self.script("""
            llm = LLM(MODEL, max_tokens=200, ignore_eos=True)
            for answer in llm.generate_iter(f"line {n}" for n in range(10 ** 9)):
                print(answer.index, flush=True)
            """), cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, -signal.SIGINT)
        self.assertIn("KeyboardInterrupt", errors)
        self.assertLess(time.monotonic() - started, 30)
        self.assertEqual(list(self.scratch.iterdir()), [])

    @unittest.skipUnless(HAS_JINJA, "jinja2 is not installed")
    def test_the_harness_has_chats(self):
        answers = self.python_prints(self.harness_script("""
            model = TriphaseLM(pretrained=MODEL)
            chat = model.apply_chat_template([{"role": "user", "content": "hi"}])
            assert chat.encode("utf-8")
            print(json.dumps(model.generate_until([types.SimpleNamespace(args=(chat, {"max_gen_toks": 4}))])))
            print(json.dumps([answer.outputs[0].text for answer in
                              LLM(MODEL, max_tokens=4).chat([{"role": "user", "content": "hi"}])]))
            for refused in (lambda: model.apply_chat_template([], add_generation_prompt=False),
                            lambda: model.loglikelihood([types.SimpleNamespace(args=(chat, "a"))])):
                try:
                    refused()
                except NotImplementedError as error:
                    print(json.dumps(str(error)))
            """), MODEL=str(self.chat_model()))
        self.assertEqual(answers[0], answers[1])
        self.assertIn("gen_prefix", answers[2])
        self.assertIn("log-likelihoods", answers[3])

    def test_sigterm_ends_an_evaluation_and_its_program(self):
        process = subprocess.Popen(self.script(self.harness_script("""
            ask("generate_until", *[("a", {"max_gen_toks": 2000})] * 1000, extra="--ignore-eos")
            """)), cwd=self.folder, env=self.environment, stderr=subprocess.DEVNULL)
        self.addCleanup(process.kill)
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 60
        while not list(self.scratch.glob("*/*.part")) and time.monotonic() < deadline:
            time.sleep(0.1)
        program = children.read_text().split()
        self.addCleanup(lambda: [os.kill(int(child), signal.SIGKILL) for child in program if
                                 pathlib.Path("/proc", child).exists()])
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 128 + signal.SIGTERM)
        self.assertEqual(list(self.scratch.iterdir()), [])
        self.assertEqual([child for child in program if pathlib.Path("/proc", child).exists()], [])
        self.assertEqual(len(program), 1)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    PROGRAM = os.path.realpath(sys.argv.pop(1))
    unittest.main()
