#!/usr/bin/env python3
"""Rules of the workspace that no lint of Rust's states as a whole: where unsafe code may be, and that a known hole in a package fails.

Ends with the line `N passed, N failed`. Needs what `tests/tools/env` sets.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ENGINE = "worker/llama/"
# What runs between fork and exec, and nothing else.
NAMED = {"gateway/cli/src/up/process.rs", "worker/src/keeper/child.rs"}
LIFTED = re.compile(r"\b(?:allow|expect|warn)\s*\((?:[^()\"]|\"[^\"]*\")*\bunsafe_code\b")


def members() -> list[Path]:
    return [ROOT / name for name in tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]]


def sources() -> list[Path]:
    return sorted(path for member in members() for path in member.rglob("*.rs") if "target" not in path.parts)


class Unsafe(unittest.TestCase):
    """`unsafe` is in the engine and in two named places."""

    def test_the_lint_is_everywhere(self) -> None:
        lints = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["lints"]
        self.assertEqual(lints["rust"]["unsafe_code"], "deny")
        for member in members():
            with self.subTest(member.name):
                self.assertEqual(tomllib.loads((member / "Cargo.toml").read_text())["lints"], {"workspace": True})

    def test_it_is_lifted_in_the_engine_and_two_named_places_only(self) -> None:
        lifted = {str(path.relative_to(ROOT)) for path in sources() if LIFTED.search(path.read_text())}
        self.assertEqual({path for path in lifted if not path.startswith(ENGINE)}, NAMED)

    def test_each_named_place_has_one(self) -> None:
        for path in NAMED:
            self.assertEqual(len(LIFTED.findall((ROOT / path).read_text())), 1, path)

    def test_crates_without_any_forbid_it(self) -> None:
        for member in members():
            with self.subTest(member.name):
                own = f"{member.relative_to(ROOT)}/"
                roots = [path for path in (member / "src/lib.rs", member / "src/main.rs") if path.exists()]
                if own == ENGINE or any(path.startswith(own + "src/") for path in NAMED):
                    continue
                for path in roots:
                    self.assertTrue("#![forbid(unsafe_code)]" in path.read_text(), path)


class Advisories(unittest.TestCase):
    """`tests/tools/advisories` on made-up databases."""

    def check(self, package: str) -> subprocess.CompletedProcess:
        with tempfile.TemporaryDirectory() as folder:
            entry = Path(folder) / "crates" / package / "RUSTSEC-2000-0002.md"
            entry.parent.mkdir(parents=True)
            entry.write_text(
                f'```toml\n[advisory]\nid = "RUSTSEC-2000-0002"\npackage = "{package}"\ndate = "2000-01-01"\n\n'
                "[versions]\npatched = []\n```\n\n# Made up\n\nMade up.\n"
            )
            git = ["git", "-c", "user.name=tests", "-c", "user.email=tests@localhost", "-C", folder]
            for words in (["init", "--quiet", "--initial-branch", "main"], ["add", "--all"], ["commit", "--quiet", "--message", "made up"]):
                subprocess.run([*git, *words], check=True)
            return subprocess.run(
                [ROOT / "tests/tools/advisories"],
                env={**os.environ, "MUSTER_ADVISORY_DB": folder},
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )

    def test_a_known_hole_in_a_package_of_ours_fails(self) -> None:
        done = self.check("tokio")
        self.assertNotEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("RUSTSEC-2000-0002", done.stdout + done.stderr)

    def test_one_in_another_package_does_not(self) -> None:
        done = self.check("muster-nothing")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=2).result
    wrong = {getattr(test, "test_case", test).id() for test, _ in result.failures + result.errors}
    print(f"{result.testsRun - len(wrong)} passed, {len(wrong)} failed", flush=True)
    sys.exit(0 if result.wasSuccessful() else 1)
