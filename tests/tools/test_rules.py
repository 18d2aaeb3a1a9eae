#!/usr/bin/env python3
"""Rules of the workspace that no lint of Rust's states as a whole: where unsafe code may be, that what is cited
exists, and that a known hole in a package fails.

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


class Dependencies(unittest.TestCase):
    """What a crate declares, it uses; what the workspace declares, some crate does. As `cargo machete`, which would have to be built first."""

    KINDS = ("dependencies", "dev-dependencies", "build-dependencies")

    def test_all_are_used(self) -> None:
        declared = set(tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"])
        idle = []
        for member in members():
            manifest = tomllib.loads((member / "Cargo.toml").read_text())
            nested = [other for other in members() if other != member and member in other.parents]
            own = [path for path in sources() if member in path.parents and not any(other in path.parents for other in nested)]
            text = "\n".join(path.read_text() for path in own)
            for name in {name for kind in self.KINDS for name in manifest.get(kind, {})}:
                declared.discard(name)
                # A crate names itself to give its own tests more features.
                if name != manifest["package"]["name"] and not re.search(rf"\b{name.replace('-', '_')}\b", text):
                    idle.append(f"{member.relative_to(ROOT)}: {name}")
        self.assertEqual((sorted(idle), declared), ([], set()))


class Citations(unittest.TestCase):
    """What the code cites is in the repository: rules by number, pages by path and heading, and every link of a page."""

    SUFFIXES = {".rs", ".proto", ".toml", ".py", ".cpp", ".h", ".md", ".cmake"}

    @classmethod
    def setUpClass(cls) -> None:
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True)
        files = [ROOT / name for name in listed.stdout.split("\0") if name] if listed.returncode == 0 else list(ROOT.rglob("*"))
        cls.files = [path for path in files if path.suffix in cls.SUFFIXES and path.is_file() and "target" not in path.parts]
        # A citation may go over the end of a line of comment.
        cls.texts = {path: re.sub(r"\n\s*(?://[/!]?|#|\*)?\s*", " ", path.read_text()) for path in cls.files}

    def numbers(self, page: str, pattern: str) -> set[str]:
        return set(re.findall(pattern, (ROOT / page).read_text(), re.MULTILINE))

    def cited(self, pattern: str) -> list[tuple[str, str]]:
        """Where, and each number of `NAME 3, 5 to 7 and 9`."""
        found = []
        for path, text in self.texts.items():
            for numbers in re.findall(pattern, text):
                found.extend((str(path.relative_to(ROOT)), number) for number in re.findall(r"\d+", numbers))
        return found

    def check(self, name: str, page: str, item: str, cited: str) -> None:
        known = self.numbers(page, item)
        self.assertTrue(known, page)
        found = self.cited(cited)
        self.assertTrue(found, name)
        self.assertEqual([(where, number) for where, number in found if number not in known], [], f"{name}: not in {page}")

    def test_rules_between_the_processes(self) -> None:
        more = r"((?:\d+(?:,? (?:and |to )?(?=\d))?)+)"
        self.check("PROTOCOL", "proto/PROTOCOL.md", r"^(\d+)\. ", r"\bPROTOCOL(?:\.md)?,? " + more)
        self.check("ENGINE", "worker/llama/ENGINE.md", r"^(\d+)\. ", r"\bENGINE\.md,? " + more)

    def test_invariants_of_policy(self) -> None:
        # I16 and the like are types of numbers.
        self.check("I", "controller/policy/README.md", r"^- I(\d+) ", r"[(, ]I(?!16\b|32\b|64\b)(\d{1,2})\b")

    def test_sources(self) -> None:
        self.check("seed", "gateway/README.md", r"^\| seed (\d+) ", r"\bseeds? ((?:0\d\d(?:,? (?:and )?(?=\d))?)+)")

    def test_pages_and_their_headings(self) -> None:
        broken = []
        for path, text in self.texts.items():
            for page, heading in re.findall(r"\b((?:[a-z]+/)+[A-Z]+\.md), ([^);]+)", text):
                headings = self.numbers(page, r"^##+ (.+)$") if (ROOT / page).exists() else set()
                if not any(heading.startswith(one) for one in headings) and not re.match(r"idea [1-6]\b", heading):
                    broken.append((str(path.relative_to(ROOT)), page, heading[:40]))
        self.assertEqual(broken, [])

    def test_pages_that_are_gone_are_not_cited(self) -> None:
        gone = re.compile(r"\b(?:DESIGN|DECISIONS|STYLE)(?:\.md\b|, [A-Z])")
        # This file names them.
        found = [str(path.relative_to(ROOT)) for path, text in self.texts.items() if path != Path(__file__) and gone.search(text)]
        self.assertEqual(found, [])

    def test_links(self) -> None:
        broken = []
        for path in self.files:
            for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", path.read_text()) if path.suffix == ".md" else []:
                page, _, anchor = link.partition("#")
                target = path if not page else path.parent / page
                if not target.exists():
                    broken.append((path.name, link))
                elif anchor:
                    anchors = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)}
                    if anchor not in anchors:
                        broken.append((path.name, link))
        self.assertEqual(broken, [])

    def test_the_readme_is_short(self) -> None:
        self.assertLessEqual(len((ROOT / "README.md").read_text().splitlines()), 150)


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
