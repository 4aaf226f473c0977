#!/usr/bin/env python3
"""Converts pytorch_model.bin (one file or shards) to safetensors without running the code inside.

    convert_to_safetensors.py MODEL_DIR [--output DIR] [--shard-size 5GB] [--overwrite]

torch.save files are pickles, and loading a pickle runs whatever it says. This script never unpickles:
it interprets the few pickle instructions that a dictionary of tensors needs and refuses every other
instruction and every other name. Needs Python 3.10 or newer and nothing else. Reads the zip form
(torch 1.6 and newer) and the older form. Files appear under their names only when complete.

With --output, the small files of the model (config, tokenizer) are copied beside the weights.
Exit codes: 0 done, 2 misuse, 3 the model was refused, 6 input or output failed.
"""

import argparse
import io
import json
import os
import pathlib
import pickletools
import re
import shutil
import stat
import struct
import sys
import zipfile

CHUNK = 16 << 20
MAX_PICKLE = 512 << 20
MAX_INSTRUCTIONS = 50_000_000
INDEX = "model.safetensors.index.json"

# torch storage classes: (safetensors type, bytes of an element, memoryview format)
STORAGES = {
    "FloatStorage": ("F32", 4, "I"),
    "HalfStorage": ("F16", 2, "H"),
    "BFloat16Storage": ("BF16", 2, "H"),
    "DoubleStorage": ("F64", 8, "Q"),
    "LongStorage": ("I64", 8, "Q"),
    "IntStorage": ("I32", 4, "I"),
    "ShortStorage": ("I16", 2, "H"),
    "CharStorage": ("I8", 1, "B"),
    "ByteStorage": ("U8", 1, "B"),
    "BoolStorage": ("BOOL", 1, "B"),
}
FUNCTIONS = {
    ("collections", "OrderedDict"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
}
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


class Refused(Exception):
    """The input is not what this script converts."""


class Name:
    """A global name: nothing but two strings, never looked up."""

    def __init__(self, module, name):
        allowed = (module, name) in FUNCTIONS or (module == "torch" and name in STORAGES)
        if not allowed:
            raise Refused(f"the file names {shown(module + '.' + name)}, which a dictionary of "
                          "tensors does not need; it may be malicious")
        self.module, self.name = module, name


class Storage:
    def __init__(self, kind, key, count):
        self.kind, self.key, self.count = kind, key, count


class Tensor:
    def __init__(self, storage, offset, shape, strides):
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides
        self.type, self.item, self.format = STORAGES[storage.kind]

    def elements(self):
        count = 1
        for size in self.shape:
            count *= size
        return count

    def bytes(self):
        return self.elements() * self.item

    def contiguous(self):
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


MARK = object()


def shown(text):
    """Untrusted text, escaped and cut."""
    return ascii(str(text))[:100]


def is_count(value):
    return type(value) is int and 0 <= value < 2**62


def make_tensor(arguments):
    if len(arguments) not in (6, 7):
        raise Refused("a tensor is described in an unknown way")
    storage, offset, shape, strides = arguments[:4]
    if (not isinstance(storage, Storage) or not is_count(offset) or not isinstance(shape, tuple)
            or not isinstance(strides, tuple) or len(shape) != len(strides) or len(shape) > 8
            or not all(map(is_count, shape)) or not all(map(is_count, strides))):
        raise Refused("a tensor is described in an unknown way")
    tensor = Tensor(storage, offset, shape, strides)
    if tensor.elements() == 0:
        return tensor
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides))
    if last >= storage.count:
        raise Refused(f"a tensor reaches beyond its storage {shown(storage.key)}")
    if any(stride == 0 and size > 1 for size, stride in zip(shape, strides)):
        raise Refused("a tensor repeats its elements (stride 0)")
    return tensor


class Interpreter:
    """Runs one pickle on a stack of plain values. Only the instructions of `step` exist."""

    def __init__(self):
        self.stack, self.memo = [], {}

    def run(self, stream):
        count = 0
        try:
            for opcode, argument, _ in pickletools.genops(stream):
                count += 1
                if count > MAX_INSTRUCTIONS:
                    raise Refused(f"more than {MAX_INSTRUCTIONS} pickle instructions")
                if opcode.name == "STOP":
                    return self.pop()
                self.step(opcode.name, argument)
        except (ValueError, IndexError, KeyError, TypeError, struct.error) as error:
            raise Refused(f"not a valid pickle: {shown(error)}") from None
        raise Refused("the pickle has no end")

    def pop(self):
        value = self.stack.pop()
        if value is MARK:
            raise ValueError("mark where a value belongs")
        return value

    def to_mark(self):
        at = len(self.stack) - 1 - self.stack[::-1].index(MARK)
        values = self.stack[at + 1:]
        del self.stack[at:]
        return values

    def step(self, name, argument):
        push = self.stack.append
        if name in ("PROTO", "FRAME"):
            return
        if name == "MARK":
            push(MARK)
        elif name in ("BININT", "BININT1", "BININT2", "LONG1", "INT", "LONG", "BINFLOAT",
                      "BINUNICODE", "SHORT_BINUNICODE", "BINSTRING", "SHORT_BINSTRING"):
            push(argument)
        elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
            push({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
        elif name == "EMPTY_DICT":
            push({})
        elif name == "EMPTY_LIST":
            push([])
        elif name == "EMPTY_TUPLE":
            push(())
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            values = [self.pop() for _ in range(int(name[-1]))]
            push(tuple(reversed(values)))
        elif name == "TUPLE":
            push(tuple(self.to_mark()))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            push(self.memo[argument])
        elif name == "GLOBAL":
            push(Name(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            attribute, module = self.pop(), self.pop()
            if not isinstance(module, str) or not isinstance(attribute, str):
                raise ValueError("a name that is no string")
            push(Name(module, attribute))
        elif name == "APPEND":
            value = self.pop()
            self.of_type(list).append(value)
        elif name == "APPENDS":
            values = self.to_mark()
            self.of_type(list).extend(values)
        elif name == "SETITEM":
            value, key = self.pop(), self.pop()
            self.set_items([key, value])
        elif name == "SETITEMS":
            self.set_items(self.to_mark())
        elif name == "BINPERSID":
            push(self.persistent(self.pop()))
        elif name == "REDUCE":
            arguments, function = self.pop(), self.pop()
            push(self.reduce(function, arguments))
        elif name == "BUILD":
            self.pop()  # attributes of an OrderedDict, such as _metadata
            self.of_type(dict)
        else:
            raise Refused(f"the file uses the pickle instruction {name}, which a dictionary of "
                          "tensors does not need; it may be malicious")

    def of_type(self, kind):
        if not isinstance(self.stack[-1], kind):
            raise ValueError("a container of another type")
        return self.stack[-1]

    def set_items(self, flat):
        target = self.of_type(dict)
        for key, value in zip(flat[::2], flat[1::2], strict=False):
            if not isinstance(key, (str, int)):
                raise ValueError("a key that is neither text nor a number")
            if key in target and isinstance(target[key], Tensor):
                raise Refused(f"the key {shown(key)} appears twice")
            target[key] = value

    @staticmethod
    def persistent(identity):
        if (not isinstance(identity, tuple) or len(identity) not in (5, 6)
                or identity[0] != "storage" or not isinstance(identity[1], Name)
                or identity[1].module != "torch" or not isinstance(identity[2], str)
                or not is_count(identity[4])):
            raise Refused("a storage is described in an unknown way")
        if len(identity) == 6 and identity[5] is not None:
            raise Refused("a storage is a view of another one")
        return Storage(identity[1].name, identity[2], identity[4])

    @staticmethod
    def reduce(function, arguments):
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise ValueError("a call of something that is no name")
        if function.name == "OrderedDict":
            pairs = arguments[0] if arguments else []
            return dict((key, value) for key, value in pairs)
        if function.name == "_rebuild_tensor_v2":
            return make_tensor(arguments)
        if function.name == "_rebuild_parameter" and arguments and isinstance(arguments[0], Tensor):
            return arguments[0]
        raise Refused("a value is made in an unknown way")


class Bounded:
    """A file whose reads never ask for more than is left, whatever a pickle says."""

    def __init__(self, file, size):
        self.file, self.size = file, size

    def read(self, count):
        return self.file.read(max(0, min(count, self.size - self.file.tell())))

    def readline(self):
        return self.file.readline(1 << 16)


class Source:
    """One .bin file: its tensors, and their bytes on request."""

    def __init__(self, path):
        self.path = path
        self.file = open_regular(path)
        self.size = os.fstat(self.file.fileno()).st_size
        self.places = {}  # storage key: (offset in the file, bytes)
        start = self.file.read(64)
        self.file.seek(0)
        if start.startswith(b"PK\x03\x04"):
            root = self.read_zip()
        elif start.startswith(b"\x80\x02"):
            root = self.read_legacy()
        elif start.startswith(b"version https://git-lfs"):
            raise Refused("this is a Git LFS pointer; run git lfs pull in the model directory")
        else:
            raise Refused("neither a zip archive nor a pickle of torch.save")
        self.tensors = self.checked(root)

    def read_zip(self):
        try:
            archive = zipfile.ZipFile(self.file)
            entries = {info.filename: info for info in archive.infolist()}
        except (zipfile.BadZipFile, ValueError, struct.error) as error:
            raise Refused(f"a damaged zip archive: {shown(error)}") from None
        pickles = [name for name in entries if re.fullmatch(r"[^/]+/data\.pkl", name)]
        if len(pickles) != 1:
            raise Refused("no data.pkl in the archive, so torch.save did not write it")
        folder = pickles[0][: -len("data.pkl")]
        if entries[pickles[0]].file_size > MAX_PICKLE:
            raise Refused(f"data.pkl is larger than {MAX_PICKLE} bytes")
        order = entries.get(folder + "byteorder")
        try:
            if order is not None and archive.read(order) != b"little":
                raise Refused("the file was written on a big-endian machine")
            root = Interpreter().run(io.BytesIO(archive.read(pickles[0])))
        except (zipfile.BadZipFile, EOFError) as error:
            raise Refused(f"a damaged zip archive: {shown(error)}") from None
        for name, info in entries.items():
            if not name.startswith(folder + "data/"):
                continue
            if info.compress_type != zipfile.ZIP_STORED:
                raise Refused(f"{shown(name)} is compressed; torch.save stores")
            self.places[name[len(folder) + 5:]] = self.data_place(info)
        return root

    def data_place(self, info):
        """Stored entries lie behind their own header, whose length may differ from the index's."""
        self.file.seek(info.header_offset)
        header = self.file.read(30)
        if len(header) != 30 or header[:4] != b"PK\x03\x04":
            raise Refused("a damaged zip archive")
        name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
        offset = info.header_offset + 30 + name_bytes + extra_bytes
        if offset + info.file_size > self.size:
            raise Refused("the file is truncated; download it again")
        return offset, info.file_size

    def read_legacy(self):
        stream = Bounded(self.file, self.size)
        if Interpreter().run(stream) != LEGACY_MAGIC or Interpreter().run(stream) != 1001:
            raise Refused("a pickle that torch.save did not write")
        system = Interpreter().run(stream)
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise Refused("the file was written on a big-endian machine")
        root = Interpreter().run(stream)
        keys = Interpreter().run(stream)
        sizes = {t.storage.key: t.storage.count * t.item
                 for t in root.values() if isinstance(t, Tensor)} if isinstance(root, dict) else {}
        if not isinstance(keys, list) or not all(key in sizes for key in keys):
            raise Refused("storages that no tensor uses")
        offset = self.file.tell()
        for key in keys:
            if offset + 8 + sizes[key] > self.size:
                raise Refused("the file is truncated; download it again")
            self.places[key] = (offset + 8, sizes[key])
            offset += 8 + sizes[key]
        return root

    def checked(self, root):
        if not isinstance(root, dict) or not root:
            raise Refused("the file holds no dictionary of tensors")
        for name, tensor in root.items():
            if not isinstance(name, str) or not 0 < len(name.encode("utf-8", "replace")) <= 256:
                raise Refused(f"the key {shown(name)} is no tensor name")
            if not isinstance(tensor, Tensor):
                raise Refused(f"{shown(name)} is no tensor")
            place = self.places.get(tensor.storage.key)
            if place is None:
                raise Refused(f"the data of {shown(name)} is missing")
            if tensor.storage.count * tensor.item > place[1]:
                raise Refused(f"the data of {shown(name)} is truncated; download the file again")
        return root

    def pieces(self, tensor):
        """The tensor's bytes in row-major order, in pieces."""
        base = self.places[tensor.storage.key][0]
        if tensor.elements() == 0:
            return
        if tensor.contiguous():
            left = tensor.bytes()
            self.file.seek(base + tensor.offset * tensor.item)
            while left:
                piece = self.file.read(min(CHUNK, left))
                if not piece:
                    raise OSError(f"{self.path}: the file became shorter while it was read")
                left -= len(piece)
                yield piece
            return
        self.file.seek(base)
        items = memoryview(self.file.read(tensor.storage.count * tensor.item)).cast(tensor.format)
        *outer, inner = zip(tensor.shape, tensor.strides)
        starts = [tensor.offset]
        for size, stride in outer:
            starts = [start + i * stride for start in starts for i in range(size)]
        for start in starts:
            yield items[start: start + (inner[0] - 1) * inner[1] + 1: inner[1]].tobytes()


def open_regular(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise Refused("not a regular file")
    return file


def source_files(directory):
    """The .bin files of the model, from its index if it has one."""
    index = directory / "pytorch_model.bin.index.json"
    if index.exists():
        try:
            listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            names = sorted(set(listed))
        except (ValueError, KeyError, AttributeError, TypeError):
            raise Refused(f"{index.name}: not a valid index") from None
        for name in names:
            if not isinstance(name, str) or not re.fullmatch(r"[^/\\\0]+\.bin", name):
                raise Refused(f"{index.name}: {shown(name)} is no file name of this directory")
        return [directory / name for name in names]
    if (directory / "pytorch_model.bin").exists():
        return [directory / "pytorch_model.bin"]
    raise Refused("no pytorch_model.bin and no pytorch_model.bin.index.json in this directory")


def shards_of(tensors, limit):
    """Groups of [(name, tensor, source)] of at most `limit` bytes, in the order of names."""
    shards, size = [[]], 0
    for name, (tensor, source) in sorted(tensors.items()):
        if shards[-1] and size + tensor.bytes() > limit:
            shards.append([])
            size = 0
        shards[-1].append((name, tensor, source))
        size += tensor.bytes()
    return shards


def write_shard(path, shard):
    """Writes and syncs one safetensors file under a temporary name."""
    shard.sort(key=lambda entry: (-entry[1].item, entry[0]))  # keeps every tensor aligned
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor, _ in shard:
        header[name] = {"dtype": tensor.type, "shape": list(tensor.shape),
                        "data_offsets": [end, end + tensor.bytes()]}
        end += tensor.bytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor, source in shard:
            for piece in source.pieces(tensor):
                file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        if file.tell() != 8 + len(text) + end:
            raise OSError(f"{path}: {file.tell()} bytes written, expected {8 + len(text) + end}")


def sync_directory(directory):
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_small_files(source, target):
    for path in sorted(source.iterdir()):
        weights = path.suffix in (".bin", ".safetensors", ".pt", ".pth", ".h5", ".msgpack", ".ot")
        if path.is_file() and not weights and not path.name.endswith(".index.json"):
            shutil.copyfile(path, target / path.name)


def convert(directory, output, limit, overwrite):
    tensors = {}
    for path in source_files(directory):
        try:
            source = Source(path)
        except Refused as refusal:
            raise Refused(f"{path.name}: {refusal}") from None
        for name, tensor in source.tensors.items():
            if name in tensors:
                raise Refused(f"{path.name}: {shown(name)} is in two files")
            tensors[name] = (tensor, source)
    shards = shards_of(tensors, limit)
    count = len(shards)
    names = (["model.safetensors"] if count == 1 else
             [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)])
    if count > 1:
        names.append(INDEX)
    output.mkdir(parents=True, exist_ok=True)
    present = [name for name in {*names, "model.safetensors", INDEX} if (output / name).exists()]
    if present and not overwrite:
        raise Refused(f"{output / sorted(present)[0]} exists; --overwrite replaces it")
    temporary = [output / f".{name}.{os.getpid()}.tmp" for name in names]
    try:
        for path, name, shard in zip(temporary, names, shards):
            write_shard(path, shard)
            print(f"{name}: {len(shard)} tensors, {path.stat().st_size} bytes", file=sys.stderr)
        if count > 1:
            total = sum(tensor.bytes() for tensor, _ in tensors.values())
            listed = {name: names[i] for i, shard in enumerate(shards) for name, _, _ in shard}
            with open(temporary[-1], "x", encoding="utf-8") as file:
                json.dump({"metadata": {"total_size": total}, "weight_map": listed}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
        if output.resolve() != directory.resolve():
            copy_small_files(directory, output)
        if overwrite:
            for name in present:
                (output / name).unlink()
        for path, name in zip(temporary, names):
            os.replace(path, output / name)
        sync_directory(output)
    finally:
        for path in temporary:
            path.unlink(missing_ok=True)


def size_of(text):
    match = re.fullmatch(r"([0-9]+)(B|KB|MB|GB|KiB|MiB|GiB)", text)
    if not match or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{ascii(text)} is no size such as 5GB or 512MiB")
    units = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    return int(match[1]) * units[match[2]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path, help="directory with pytorch_model*.bin")
    parser.add_argument("--output", type=pathlib.Path, help="directory to write (default: MODEL)")
    parser.add_argument("--shard-size", type=size_of, default=size_of("5GB"),
                        help="largest file; default 5GB")
    parser.add_argument("--overwrite", action="store_true", help="replace existing safetensors")
    options = parser.parse_args()
    try:
        convert(options.model, options.output or options.model, options.shard_size,
                options.overwrite)
    except Refused as refusal:
        print(f"convert_to_safetensors: error: {refusal}", file=sys.stderr)
        return 3
    except (OSError, MemoryError) as error:
        print(f"convert_to_safetensors: error: {ascii(str(error))}", file=sys.stderr)
        return 6
    return 0


if __name__ == "__main__":
    sys.exit(main())
