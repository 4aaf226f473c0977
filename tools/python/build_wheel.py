#!/usr/bin/env python3
"""Makes the wheel: the package, the program, and beside it the shared libraries that it needs.

    build_wheel.py PROGRAM FOLDER     writes FOLDER/triphase-VERSION-py3-none-PLATFORM.whl

It is the build backend of this folder too, so that `pip install tools/python` installs what tools/build.sh
built. Standard library only; needs patchelf, strip and ldd. glibc stays the target machine's, which must have
this machine's version or a newer one: the platform's name says so.
"""

import base64
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Of the target machine: glibc's libraries and the GPU's driver.
OF_THE_SYSTEM = re.compile(r"(linux-vdso|ld-linux.*|lib(c|m|pthread|dl|rt|resolv|util|cuda|nvidia.*))\.so.*")


def version():
    return re.search(r"project\(triphase VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


def platform_tag():
    glibc = os.confstr("CS_GNU_LIBC_VERSION").split()[1].replace(".", "_")
    return f"manylinux_{glibc}_{platform.machine()}"


def libraries(program):
    """{name: path} of the shared libraries that travel with the program."""
    found = {}
    for line in subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if not arrow or OF_THE_SYSTEM.fullmatch(name):
            continue
        path = rest.rsplit(" (", 1)[0]
        if not os.path.isfile(path):
            raise SystemExit(f"triphase: error: {program} needs {name}, which is not found")
        found[name] = pathlib.Path(path).resolve()
    return found


def copy_binaries(program, folder):
    """The program, stripped, and its libraries, which find each other by $ORIGIN."""
    folder.mkdir(parents=True)
    subprocess.run(["strip", "-o", folder / "triphase", program], check=True)
    for name, path in libraries(program).items():
        shutil.copyfile(path, folder / name)
    for file in folder.iterdir():
        subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", file], check=True)
        file.chmod(0o755)


def copy_licenses(program, folder):
    """What Debian says about the libraries' copyright, which must travel with them."""
    folder.mkdir(parents=True)
    for path in libraries(program).values():
        # Packages older than Debian's merge of /lib into /usr/lib are listed under /lib; one name fails.
        names = (str(path), str(path).removeprefix("/usr"))
        owner = subprocess.run(["dpkg-query", "-S", *names], check=False, capture_output=True,
                               text=True).stdout.split(":", 1)[0]
        if not owner:
            raise SystemExit(f"triphase: error: {path} is of no Debian package, whose copyright would go with it")
        shutil.copyfile(f"/usr/share/doc/{owner}/copyright", folder / f"{owner}.txt")


def metadata(project):
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version()}",
             f"Summary: {project['description']}", f"Requires-Python: {project['requires-python']}"]
    return "\n".join(lines + [f"Requires-Dist: {name}" for name in project["dependencies"]]) + "\n"


def entry_points(project):
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    return "\n".join(f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in names.items())
                     for group, names in groups.items())


def pack(tree, wheel, record):
    """Zips every file of the tree, and the list of them with their hashes. Equal trees give equal bytes."""
    rows = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        def add(name, content, mode):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, content)

        for file in sorted(path for path in tree.rglob("*") if path.is_file()):
            name, content = file.relative_to(tree).as_posix(), file.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(content)}\n")
            add(name, content, 0o755 if os.access(file, os.X_OK) else 0o644)
        add(record, "".join(rows) + f"{record},,\n", 0o644)


def make_wheel(program, folder):
    """The wheel's file name in `folder`."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    tag = f"py3-none-{platform_tag()}"
    base = f"{project['name']}-{version()}"
    with tempfile.TemporaryDirectory(prefix="triphase-wheel-") as scratch:
        tree = pathlib.Path(scratch)
        shutil.copytree(HERE / "src" / "triphase", tree / "triphase", copy_function=shutil.copyfile,
                        ignore=shutil.ignore_patterns("__pycache__", "bin"))
        copy_binaries(program, tree / "triphase" / "bin")
        info = tree / f"{base}.dist-info"
        copy_licenses(program, info / "licenses")
        (info / "METADATA").write_text(metadata(project))
        (info / "entry_points.txt").write_text(entry_points(project))
        (info / "WHEEL").write_text("Wheel-Version: 1.0\nGenerator: triphase\nRoot-Is-Purelib: false\n"
                                    f"Tag: {tag}\n")
        wheel = pathlib.Path(folder) / f"{base}-{tag}.whl"
        wheel.parent.mkdir(parents=True, exist_ok=True)
        wheel.unlink(missing_ok=True)
        pack(tree, wheel, f"{base}.dist-info/RECORD")
    return wheel.name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """What pip calls (PEP 517)."""
    del config_settings, metadata_directory
    for preset in ("portable", "release"):
        program = ROOT / "build" / preset / "bin" / "triphase"
        if program.is_file():
            return make_wheel(program, wheel_directory)
    raise SystemExit("triphase: error: no program is built; tools/build.sh release triphase builds it")


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("triphase: error: the source is the repository; tools/make_wheel.sh makes a wheel of it")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    made = pathlib.Path(sys.argv[2]) / make_wheel(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2])
    print(f"{made}: {made.stat().st_size / 1048576:.1f} MiB")
