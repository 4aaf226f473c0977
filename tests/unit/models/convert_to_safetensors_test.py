#!/usr/bin/env python3
"""Tests of tools/convert_to_safetensors.py. Standard library only; the part that compares with torch
is skipped, with the reason, where torch is missing.

    convert_to_safetensors_test.py PATH_OF_THE_SCRIPT
"""

import collections
import io
import json
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tempfile
import types
import unittest
import zipfile

SCRIPT = pathlib.Path(sys.argv.pop(1)).resolve()


# What torch.save writes, made without torch: stand-ins under torch's names, pickled the same way.
class _Storage:
    def __init__(self, kind, key, data, count):
        self.kind, self.key, self.data, self.count = kind, key, data, count


class _Tensor:
    def __init__(self, storage, offset, shape, strides):
        self.arguments = (storage, offset, shape, strides, False, collections.OrderedDict())


def _named(module, name):
    thing = type(name, (), {}) if name.endswith("Storage") else (lambda *arguments: None)
    thing.__module__, thing.__qualname__, thing.__name__ = module, name, name
    setattr(sys.modules[module], name, thing)
    return thing


def _stand_ins():
    for module in ("torch", "torch._utils"):
        sys.modules[module] = types.ModuleType(module)
    kinds = {name: _named("torch", name) for name in ("FloatStorage", "HalfStorage", "LongStorage")}
    return kinds, _named("torch._utils", "_rebuild_tensor_v2")


class Writer:
    """Makes torch.save files of dictionaries of _Tensor."""

    def __init__(self):
        saved = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
        self.kinds, self.rebuild = _stand_ins()
        self.saved = saved

    def restore(self):
        for name, module in self.saved.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module

    def pickled(self, value, protocol=2, legacy=False):
        writer = self
        stream = io.BytesIO()

        class Pickler(pickle.Pickler):
            def persistent_id(self, thing):
                if not isinstance(thing, _Storage):
                    return None
                identity = ("storage", writer.kinds[thing.kind], thing.key, "cpu", thing.count)
                return (*identity, None) if legacy else identity

            def reducer_override(self, thing):
                if isinstance(thing, _Tensor):
                    return writer.rebuild, thing.arguments
                return NotImplemented

        Pickler(stream, protocol).dump(value)
        return stream.getvalue()

    def zipped(self, value, storages, protocol=2):
        return zip_of(self.pickled(value, protocol), storages)

    def legacy(self, value, storages):
        system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}
        parts = [pickle.dumps(0x1950A86A20F9469CFC6C, 2), pickle.dumps(1001, 2),
                 pickle.dumps(system, 2), self.pickled(value, legacy=True),
                 pickle.dumps([storage.key for storage in storages], 2)]
        for storage in storages:
            parts += [struct.pack("<q", storage.count), storage.data]
        return b"".join(parts)


def zip_of(data_pkl, storages=(), compression=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.writestr("archive/data.pkl", data_pkl)
        archive.writestr("archive/byteorder", b"little")
        for storage in storages:
            archive.writestr(f"archive/data/{storage.key}", storage.data)
        archive.writestr("archive/version", b"3\n")
    return stream.getvalue()


def read_safetensors(path):
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8: 8 + length])
    header.pop("__metadata__")
    data = content[8 + length:]
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items()}


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


class Conversion(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.model = pathlib.Path(self.folder.name)
        self.writer = Writer()
        self.weight = _Storage("FloatStorage", "0", floats(*range(6)), 6)
        self.half = _Storage("HalfStorage", "1", struct.pack("<3e", 0.5, 1.5, -2.0), 3)
        self.ids = _Storage("LongStorage", "2", struct.pack("<2q", 7, -1), 2)
        self.storages = [self.weight, self.half, self.ids]
        self.state = collections.OrderedDict(
            weight=_Tensor(self.weight, 0, (2, 3), (3, 1)),
            transposed=_Tensor(self.weight, 0, (3, 2), (1, 3)),
            part=_Tensor(self.weight, 2, (2,), (1,)),
            scalar=_Tensor(self.weight, 5, (), ()),
            half=_Tensor(self.half, 0, (3,), (1,)),
            empty=_Tensor(self.half, 0, (0, 4), (4, 1)),
            ids=_Tensor(self.ids, 0, (2, 1), (1, 1)),
        )
        self.state._metadata = collections.OrderedDict(version=1)
        self.expected = {
            "weight": ("F32", [2, 3], floats(0, 1, 2, 3, 4, 5)),
            "transposed": ("F32", [3, 2], floats(0, 3, 1, 4, 2, 5)),
            "part": ("F32", [2], floats(2, 3)),
            "scalar": ("F32", [], floats(5)),
            "half": ("F16", [3], self.half.data),
            "empty": ("F16", [0, 4], b""),
            "ids": ("I64", [2, 1], self.ids.data),
        }

    def tearDown(self):
        self.writer.restore()
        self.folder.cleanup()

    def convert(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, self.model, *map(str, arguments)],
                              capture_output=True, text=True, timeout=60, cwd=self.model)

    def write(self, content, name="pytorch_model.bin"):
        (self.model / name).write_bytes(content)

    def converted(self, *arguments):
        result = self.convert(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def refused(self, content, text, code=3):
        self.write(content)
        before = sorted(os.listdir(self.model))
        result = self.convert()
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertIn(text, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertEqual(sorted(os.listdir(self.model)), before)

    def test_both_forms_and_protocols(self):
        for content in (self.writer.zipped(self.state, self.storages),
                        self.writer.zipped(dict(self.state), self.storages, protocol=4),
                        self.writer.legacy(self.state, self.storages)):
            self.write(content)
            self.converted("--overwrite")
            self.assertEqual(read_safetensors(self.model / "model.safetensors"), self.expected)
            self.assertEqual(sorted(os.listdir(self.model)),
                             ["model.safetensors", "pytorch_model.bin"])

    def test_shards(self):
        first = {name: self.state[name] for name in ("weight", "part")}
        second = {name: self.state[name] for name in ("half", "ids")}
        self.write(self.writer.zipped(first, [self.weight]), "pytorch_model-00001-of-00002.bin")
        self.write(self.writer.zipped(second, [self.half, self.ids]),
                   "pytorch_model-00002-of-00002.bin")
        listed = {**dict.fromkeys(first, "pytorch_model-00001-of-00002.bin"),
                  **dict.fromkeys(second, "pytorch_model-00002-of-00002.bin")}
        (self.model / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": listed}))
        (self.model / "config.json").write_text("{}")
        target = self.model / "converted"
        self.converted("--output", target, "--shard-size", "24B")
        index = json.loads((target / "model.safetensors.index.json").read_text())
        self.assertEqual(set(index["weight_map"]), {"weight", "part", "half", "ids"})
        self.assertEqual(index["metadata"]["total_size"], 24 + 8 + 6 + 16)
        together = {}
        for file in set(index["weight_map"].values()):
            together.update(read_safetensors(target / file))
        self.assertEqual(together, {name: self.expected[name] for name in listed})
        self.assertTrue((target / "config.json").exists())
        self.assertFalse(any(name.endswith(".bin") for name in os.listdir(target)))

    def test_existing_files_stay(self):
        self.write(self.writer.zipped(self.state, self.storages))
        (self.model / "model.safetensors").write_bytes(b"mine")
        result = self.convert()
        self.assertEqual(result.returncode, 3)
        self.assertIn("--overwrite", result.stderr)
        self.assertEqual((self.model / "model.safetensors").read_bytes(), b"mine")

    def test_code_is_never_run(self):
        marker = self.model / "marker"

        class Evil:
            def __reduce__(self):
                return os.system, (f"touch {marker}",)

        evil = pickle.dumps({"weight": Evil()}, 2)
        self.assertEqual(pickle.loads(evil)["weight"], 0)  # a plain load does run it
        self.assertTrue(marker.exists())
        marker.unlink()
        self.refused(zip_of(evil), "malicious")
        self.refused(zip_of(pickle.dumps({"weight": Evil()}, 4)), "malicious")
        self.refused(pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
                     + pickle.dumps(Evil(), 2), "malicious")
        self.assertFalse(marker.exists())

    def test_other_instructions_and_names_are_refused(self):
        for body in (b"cbuiltins\neval\n.", b"(S'touch marker'\nios\nsystem\n.",
                     b"(cos\nsystem\nS'x'\no.", b"ctorch\nload\n.", b"\x82\x01.",
                     b"ccollections\nOrderedDict\n)\x81."):
            self.refused(zip_of(b"\x80\x02" + body), "error")
            self.assertFalse((self.model / "marker").exists())
        self.refused(zip_of(b"\x80\x02Vtext\n."), "UNICODE")

    def test_damage_is_refused(self):
        good = self.writer.zipped(self.state, self.storages)
        self.refused(b"", "neither a zip archive")
        self.refused(b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull")
        self.refused(good[: len(good) // 2], "zip")
        self.refused(zip_of(b""), "pickle")
        self.refused(zip_of(b"\x80\x02}q\x00"), "pickle")
        self.refused(zip_of(b"\x80\x02."), "pickle")
        self.refused(zip_of(pickle.dumps([1], 2)), "no dictionary")
        self.refused(zip_of(pickle.dumps({"a": 1}, 2)), "is no tensor")
        legacy = self.writer.legacy(self.state, self.storages)
        self.refused(legacy[:-1], "truncated")
        self.refused(self.writer.zipped(self.state, self.storages[:2]), "missing")
        self.weight.data = self.weight.data[:-1]
        self.refused(self.writer.zipped(self.state, self.storages), "truncated")

    def test_tensors_stay_inside_their_storage(self):
        for tensor, text in ((_Tensor(self.weight, 1, (2, 3), (3, 1)), "beyond"),
                             (_Tensor(self.weight, 0, (2**40, 2**40), (1, 1)), "beyond"),
                             (_Tensor(self.weight, 0, (2**40,), (0,)), "stride 0"),
                             (_Tensor(self.weight, -1, (1,), (1,)), "unknown way"),
                             (_Tensor(self.weight, 0, (-1,), (1,)), "unknown way"),
                             (_Tensor(self.weight, 0, (1,), ()), "unknown way"),
                             (_Tensor(self.weight, 0, (2.0,), (1,)), "unknown way")):
            self.refused(self.writer.zipped({"a": tensor}, self.storages), text)

    def test_compressed_and_hostile_archives(self):
        storages = [_Storage("FloatStorage", "0", b"\0" * 100_000, 25_000)]
        state = {"a": _Tensor(storages[0], 0, (25_000,), (1,))}
        self.refused(zip_of(self.writer.pickled(state), storages, zipfile.ZIP_DEFLATED),
                     "compressed")
        (self.model / "pytorch_model.bin").unlink()
        (self.model / "pytorch_model.bin.index.json").write_text(
            json.dumps({"weight_map": {"a": "../x.bin"}}))
        self.assertIn("no file name", self.convert().stderr)

    def test_fifo(self):
        os.mkfifo(self.model / "pytorch_model.bin")
        result = self.convert()
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("not a regular file", result.stderr)


class AgainstTorch(unittest.TestCase):
    def test_same_values(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed: compared with hand-made files only")
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder)
            base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
            state = {"a": base, "t": base.t(), "s": base[1:3, 2:5], "h": base.half(),
                     "b": base.bfloat16(), "p": torch.nn.Parameter(base[0].clone()),
                     "i": torch.tensor([1, -2]), "z": torch.zeros(0, 3)}
            for zipped in (True, False):
                torch.save(state, model / "pytorch_model.bin",
                           _use_new_zipfile_serialization=zipped)
                subprocess.run([sys.executable, SCRIPT, model, "--overwrite"], check=True,
                               capture_output=True)
                for name, (_, shape, data) in read_safetensors(model / "model.safetensors").items():
                    tensor = state[name].detach().contiguous()
                    self.assertEqual(shape, list(tensor.shape), name)
                    raw = bytes(tensor.view(torch.uint8).flatten().tolist()) if tensor.numel() else b""
                    self.assertEqual(data, raw, name)


if __name__ == "__main__":
    unittest.main()
