#!/usr/bin/env python3
"""Tests of what finds out whether a system can build Muster (`deploy/system.sh`), against made-up roots.

Ends with the line `N passed, N failed`. Needs bash and Python's own library only. `tests/fresh` does the same for real.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SYSTEM = ROOT / "deploy" / "system.sh"
LIBRARY = bytes.fromhex("7f454c4602") + b"made up"
# What a bare Debian has.
BARE = "awk bash cat chmod dirname env find grep head mkdir od readlink sed sh sleep sort tail tr wc".split()


class System(unittest.TestCase):
    """A made-up root with the commands of a bare Debian, a user's id, and what a test adds."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name) / "a root"
        self.bin = self.root / "bin"
        self.bin.mkdir(parents=True)
        for name in BARE:
            (self.bin / name).symlink_to(shutil.which(name) or name)
        self.command("id", "echo 1000")
        self.environment = {"PATH": str(self.bin), "SYSTEM_ROOT": str(self.root)}

    def command(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def file(self, path: str, content: bytes = LIBRARY) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return file

    def run_in(self, *words: str, **environment: str) -> subprocess.CompletedProcess:
        script = f'set -euo pipefail; . "{SYSTEM}"; "$@"'
        return subprocess.run(
            [self.bin / "bash", "-c", script, "test", *words],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def holds(self, *words: str, **environment: str) -> bool:
        done = self.run_in(*words, **environment)
        self.assertEqual(done.stderr, "")
        return done.returncode == 0


class Libclang(System):
    """The class of mistakes: a file that looks like libclang, or libclang without what bindgen needs of it."""

    def headers(self, folder: str = "usr/lib/llvm-14/lib") -> None:
        self.file(f"{folder}/clang/14.0.6/include/stddef.h", b"")

    def test_nothing_there(self) -> None:
        self.assertFalse(self.holds("have_libclang"))

    def test_the_cpp_library_is_not_libclang(self) -> None:
        self.headers()
        for path in ("usr/lib/llvm-14/lib/libclang-cpp.so.14", "usr/lib/x86_64-linux-gnu/libclang-cpp.so.14", "usr/lib/x86_64-linux-gnu/libclang-cpp.so"):
            self.file(path)
        self.assertFalse(self.holds("have_libclang"))

    def test_every_name_and_folder_that_bindgen_takes(self) -> None:
        self.headers()
        for path in (
            "usr/lib/llvm-14/lib/libclang.so",
            "usr/lib/llvm-14/lib/libclang-14.so",
            "usr/lib/x86_64-linux-gnu/libclang-14.so.1",
            "usr/lib/x86_64-linux-gnu/libclang.so.19",
            "usr/lib64/libclang.so",
            "usr/local/llvm/lib/libclang.so.13",
            "usr/local/lib/libclang.so",
        ):
            with self.subTest(path):
                file = self.file(path)
                self.assertTrue(self.holds("have_libclang"))
                file.unlink()

    def test_without_clangs_headers_it_is_of_no_use(self) -> None:
        self.file("usr/lib/x86_64-linux-gnu/libclang-14.so.1")
        self.assertFalse(self.holds("have_libclang"))
        self.command("clang", "")
        self.assertTrue(self.holds("have_libclang"))

    def test_broken_links_and_texts_are_no_library(self) -> None:
        self.headers()
        self.file("usr/lib/llvm-14/lib/libclang.so", b"INPUT(libclang.so.1)")
        (self.root / "usr/lib/llvm-14/lib/libclang-14.so").symlink_to("gone")
        self.assertFalse(self.holds("have_libclang"))

    def test_the_environment_decides_as_for_bindgen(self) -> None:
        self.headers("opt/clang/lib")
        library = self.file("opt/clang/lib/libclang.so.18")
        self.assertFalse(self.holds("have_libclang"))
        for path in (library, library.parent):
            self.assertTrue(self.holds("have_libclang", LIBCLANG_PATH=str(path)))
        self.assertTrue(self.holds("have_libclang", LD_LIBRARY_PATH=f"/nowhere:{library.parent}"))
        self.command("llvm-config", f'echo "{self.root}/opt/clang"')
        self.assertTrue(self.holds("have_libclang"))
        # Nothing else is looked at once it is set.
        self.assertFalse(self.holds("have_libclang", LIBCLANG_PATH=str(self.root / "nowhere")))


class Tools(System):
    """Tools that are there and of no use."""

    def test_versions(self) -> None:
        for have, least, wanted in (("3.25.1", "3.14", True), ("3.14", "3.14", True), ("3.13.4", "3.14", False), ("3.5", "3.14", False), ("", "3.14", False)):
            self.assertEqual(self.holds("version_at_least", have, least), wanted, (have, least))

    def test_cmake_that_is_too_old(self) -> None:
        self.assertFalse(self.holds("have_cmake"))
        self.command("cmake", "echo cmake version 3.13.4; echo CMake suite")
        self.assertFalse(self.holds("have_cmake"))
        self.command("cmake", "echo cmake version 3.25.1; echo CMake suite")
        self.assertTrue(self.holds("have_cmake"))

    def test_a_compiler_without_its_library(self) -> None:
        self.command("cc", "")
        self.assertFalse(self.holds("have_cxx"))
        self.command("c++", 'echo "fatal error: filesystem: No such file" >&2; exit 1')
        self.assertFalse(self.holds("have_cxx"))
        self.command("c++", "cat >/dev/null")
        self.assertTrue(self.holds("have_cxx"))

    def test_certificates(self) -> None:
        self.assertFalse(self.holds("have_certificates"))
        self.assertTrue(self.holds("have_certificates", SSL_CERT_FILE="/somewhere"))
        self.file("etc/ssl/certs/ca-certificates.crt")
        self.assertTrue(self.holds("have_certificates"))

    def test_rust_that_is_too_old(self) -> None:
        checkout = self.file("checkout/Cargo.toml", b'[workspace.package]\nrust-version = "1.95"\n').parent
        asked = lambda **environment: self.run_in("require_rust", "deploy/up", str(checkout), **environment)
        done = asked()
        self.assertEqual(done.returncode, 1)
        self.assertIn("Rust 1.95 or newer is missing. Run this, then deploy/up again:\n  curl", done.stderr)
        self.command("cargo", "echo cargo 1.63.0")
        self.assertIn("(found: cargo 1.63.0)", asked().stderr)
        self.command("cargo", "echo 'cargo 1.100.0 (f2d3ce0bd 2027-03-21)'")
        self.assertEqual((asked().returncode, asked().stderr), (0, ""))

    def test_rust_of_another_login(self) -> None:
        checkout = self.file("checkout/Cargo.toml", b'rust-version = "1.95"\n').parent
        self.file("home/.cargo/bin/cargo", b"#!/bin/sh\necho cargo 1.95.0\n").chmod(0o755)
        self.file("home/.cargo/env", f'PATH="{self.root}/home/.cargo/bin:$PATH"'.encode())
        self.assertTrue(self.holds("have_rust", str(checkout), HOME=str(self.root / "home")))

    def test_python_without_venv(self) -> None:
        self.command("python3", "exit 1")
        self.assertIn("python3-venv", self.run_in("missing_for_tests").stdout.split())


class Gpus(System):
    """What the engine is built for."""

    def chosen(self, wanted: str = "", **environment: str) -> tuple[str, str]:
        done = self.run_in("choose_backend", wanted, **environment)
        return done.stdout.strip(), done.stderr

    def test_without_a_gpu_nothing_is_said(self) -> None:
        self.assertEqual(self.chosen(), ("cpu", ""))

    def test_a_gpu_that_nothing_is_built_for_is_told_of(self) -> None:
        self.file("dev/dri/renderD128", b"")
        self.file("usr/include/vulkan/vulkan_core.h", b"#define VK_HEADER_VERSION 239\n")
        backend, why = self.chosen()
        self.assertEqual(backend, "cpu")
        for lack in ("cuda wants an NVIDIA driver, nvcc", "vulkan wants glslc, Vulkan headers"):
            self.assertIn(lack, why)

    def test_vulkan_where_headers_and_a_gpu_are(self) -> None:
        self.file("dev/dri/renderD128", b"")
        self.file("usr/include/vulkan/vulkan_core.h", b"#define VK_HEADER_VERSION 309\n")
        self.command("glslc", "")
        self.assertEqual(self.chosen(), ("vulkan", ""))
        self.assertEqual(self.chosen("cpu"), ("cpu", ""))
        sdk = self.file("sdk/include/vulkan/vulkan_core.h", b"#define VK_HEADER_VERSION 200\n").parents[2]
        self.assertEqual(self.chosen(VULKAN_SDK=str(sdk))[0], "cpu")

    def test_cuda_before_vulkan(self) -> None:
        self.test_vulkan_where_headers_and_a_gpu_are()
        self.file("proc/driver/nvidia/version", b"")
        self.assertEqual(self.chosen()[0], "vulkan")
        self.file("usr/local/cuda/bin/nvcc").chmod(0o755)
        self.assertEqual(self.chosen(), ("cuda", ""))

    def test_a_name_that_is_none(self) -> None:
        backend, why = self.chosen("opengl")
        self.assertEqual(backend, "")
        self.assertIn("opengl is no backend", why)


class Packages(System):
    """What is done about what is missing."""

    ALL = "cmake make g++ libclang-dev ca-certificates"

    def test_a_user_is_told_the_one_line(self) -> None:
        self.command("apt-get", 'echo "apt-get was run" >&2; exit 1')
        done = self.run_in("require", "deploy/up", "missing_for_build")
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"sudo apt-get update && sudo apt-get install -y --no-install-recommends {self.ALL}\n", done.stderr)
        self.assertNotIn("was run", done.stderr)

    def test_without_apt_the_names_are_said(self) -> None:
        done = self.run_in("require", "deploy/up", "missing_for_build")
        self.assertEqual(done.returncode, 1)
        self.assertIn(self.ALL, done.stderr)

    def test_root_gets_them_installed_and_what_did_not_help_is_said(self) -> None:
        self.command("id", "echo 0")
        self.command("apt-get", 'echo "$@" >>"$SYSTEM_ROOT/apt"')
        done = self.run_in("require", "deploy/up", "missing_for_build")
        self.assertEqual((self.root / "apt").read_text().splitlines(), ["update -qq", f"install -y --no-install-recommends {self.ALL}"])
        self.assertEqual(done.returncode, 1)
        self.assertIn("still missing", done.stderr)

    def test_nothing_is_run_where_nothing_is_missing(self) -> None:
        self.command("apt-get", 'echo "apt-get was run" >&2; exit 1')
        self.command("cmake", "echo cmake version 3.25.1")
        for name in ("make", "cc"):
            self.command(name, "")
        self.command("c++", "cat >/dev/null")
        self.file("etc/ssl/certs/ca-certificates.crt")
        self.file("usr/lib/llvm-14/lib/libclang.so")
        self.file("usr/lib/llvm-14/lib/clang/14.0.6/include/stddef.h", b"")
        done = self.run_in("require", "deploy/up", "missing_for_build")
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class Up(System):
    """`deploy/up` with made-up tools: cargo makes a `muster` that says how it was called."""

    CARGO = """
case $1 in
--version) echo cargo 1.95.0; exit ;;
fetch) exit ;;
esac
while [ "$1" != --target-dir ]; do shift; done
printf '   Compiling one v1.0.0\\n   Compiling two v1.0.0\\n' >&2
mkdir -p "$2/release"
printf '#!/bin/sh\\necho "muster $*"; echo "home ${CARGO_HOME:-} ${XDG_STATE_HOME:-}"\\n' >"$2/release/muster"
chmod +x "$2/release/muster"
"""

    def setUp(self) -> None:
        super().setUp()
        self.command("cmake", "echo cmake version 3.25.1")
        for name in ("make", "cc", "rustc"):
            self.command(name, "")
        self.command("c++", "cat >/dev/null")
        self.command("cargo", self.CARGO)
        self.file("etc/ssl/certs/ca-certificates.crt")
        self.file("usr/lib/llvm-14/lib/libclang.so")
        self.file("usr/lib/llvm-14/lib/clang/14.0.6/include/stddef.h", b"")
        self.checkout = self.file("a check out/Cargo.toml", b'rust-version = "1.95"\n').parent
        for name in ("up", "system.sh"):
            path = self.file(f"a check out/deploy/{name}", (ROOT / "deploy" / name).read_bytes())
            path.chmod(0o755)
        self.model = self.file("a check out/deploy/models/demo.gguf")
        self.home = self.root / "home"
        self.home.mkdir()
        self.environment["HOME"] = str(self.home)

    def up(self, *words: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.checkout / "deploy/up", *words],
            env={**self.environment, **environment},
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def test_a_path_with_spaces(self) -> None:
        done = self.up("--http", "127.0.0.1:1")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.splitlines()[0], f"muster up --model {self.model} --http 127.0.0.1:1")
        self.assertIn("Compiling one", (self.checkout / "target/up.log").read_text())

    def test_models_that_the_caller_names_are_the_only_ones(self) -> None:
        self.assertEqual(self.up("--model", "x.gguf").stdout.splitlines()[0], "muster up --model x.gguf")

    def test_a_target_folder_of_the_callers(self) -> None:
        self.assertEqual(self.up(CARGO_TARGET_DIR="else where").returncode, 0)
        self.assertTrue((self.root / "else where/release/muster").exists())
        self.assertFalse((self.checkout / "target").exists())

    def test_a_checkout_that_cannot_be_written(self) -> None:
        (self.checkout / "target").write_text("")
        self.assertEqual(self.up().returncode, 0)
        self.assertTrue((self.home / ".cache/muster/target/release/muster").exists())
        self.file("home/.cache/muster2", b"")
        done = self.up(XDG_CACHE_HOME=str(self.home / ".cache/muster2"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("CARGO_TARGET_DIR=FOLDER deploy/up", done.stderr)

    def test_without_a_home_packages_and_state_lie_beside_what_is_built(self) -> None:
        target = self.checkout / "target"
        for home in ("", "/nowhere/at/all"):
            done = self.up(HOME=home)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(done.stdout.splitlines()[1], f"home {target}/cargo {target}/state")
        self.assertEqual(self.up().stdout.splitlines()[1].strip(), "home")

    def test_a_build_that_fails_shows_the_end_of_its_log(self) -> None:
        self.command("cargo", 'case $1 in --version) echo cargo 1.95.0; exit ;; esac; echo "error: nothing works" >&2; exit 101')
        done = self.up()
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: nothing works\ndeploy/up: building (once, some minutes): failed after", done.stderr)

    def test_a_long_build_says_how_far_it_is(self) -> None:
        self.command("cargo", self.CARGO + "sleep 4")
        done = self.up()
        lines = done.stderr.splitlines()
        self.assertEqual((done.returncode, len(lines)), (0, 2), done.stderr)
        self.assertEqual(lines[0], "deploy/up: building (once, some minutes) …")
        self.assertRegex(lines[1], r"^deploy/up: building \(once, some minutes\): \d+ s$")

    def test_an_interrupt_ends_what_cargo_started(self) -> None:
        compile = """sh -c 'echo $$ >"$SYSTEM_ROOT/compiler"; exec sleep 60'; true"""
        self.command("cargo", f"case $1 in --version) echo cargo 1.95.0; exit ;; esac; {compile}")
        process = subprocess.Popen([self.checkout / "deploy/up"], env=self.environment, stderr=subprocess.PIPE, text=True)
        compiler = self.root / "compiler"
        deadline = time.monotonic() + 30
        while not (compiler.exists() and compiler.read_text().strip()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=30), 130)
        process.stderr.close()
        child = Path("/proc") / compiler.read_text().strip()
        while child.exists() and "Z" not in (child / "stat").read_text().rsplit(")", 1)[1] and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse(child.exists() and "sleep" in (child / "cmdline").read_text())


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=2).result
    wrong = {getattr(test, "test_case", test).id() for test, _ in result.failures + result.errors}
    print(f"{result.testsRun - len(wrong)} passed, {len(wrong)} failed", flush=True)
    sys.exit(0 if result.wasSuccessful() else 1)
