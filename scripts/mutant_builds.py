"""Lists the mutants of the functions that encode images, and builds them. scripts/mutants runs what is built."""

import collections
import fcntl
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

import results

ROOT = results.ROOT
WORK = ROOT / "target" / "mutants"
TREE = WORK / "tree"
QCOW2 = "src/images/qcow2"
# The files that encode, and which functions of them, as a regular expression.
ENCODING = {
    f"{QCOW2}/encoding/**": "",
    f"{QCOW2}/header/mod.rs": "::(write_header|fixed_part|features)$",
    # Without the text of an error.
    f"{QCOW2}/header/layout.rs": "^(?!.*::too_long$)",
    f"{QCOW2}/serialise.rs": "",
    f"{QCOW2}/tables.rs": "^write_sparse$",
    f"{QCOW2}/plan.rs": "Sizes for",
    f"{QCOW2}/state.rs": "::(entry|directory_bytes|table_bytes)$",
    f"{QCOW2}/refcounts/mod.rs": "serialise",
    f"{QCOW2}/builder/snapshots.rs": "(::(entry|says_size|digits|write|write_snapshots)|write_number)$",
    f"{QCOW2}/builder/bitmaps.rs": "::(write_name|bitmaps_autoclear|bitmaps_extension|write_bitmaps|write_bits)$",
    f"{QCOW2}/builder/file.rs": "::seal$",
    f"{QCOW2}/builder/mapped.rs": "::(build_raw|write_flat|store|write_read)$",
    f"{QCOW2}/payload/**": "",
}
# A statement that writes a field.
FIELD = re.compile(r"^ *((?:super::)?put\(.*|\w+\.put_(?:u\d+|slice|bytes)\(.*);$", re.MULTILINE)
# The crate alone is optimised a little: the dependencies are those of the tree. Debug assertions are off, as in `cargo build
# --release`, so that an oracle has to find a mutant.
PROFILE = [f"--config=profile.dev.package.qcowfuzz.{setting}" for setting in (
    "opt-level=1", "debug-assertions=false", "overflow-checks=false", 'debug="line-tables-only"')]
SELECT = "QCOWFUZZ_MUTANT"
# The crate reads the number once.
SWITCH = f"""
/// The number of the mutant that runs; 0 for none.
pub(crate) fn mutant() -> u32 {{
    static NUMBER: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {{
        std::env::var("{SELECT}").ok().and_then(|it| it.parse().ok()).unwrap_or(0)
    }});
    *NUMBER
}}
"""


class Mutant(NamedTuple):
    """A change of one piece of a file."""

    name: str
    file: str
    # From and to which character; of a constant, there is no function.
    function: tuple | None
    piece: tuple
    replacement: str


def offsets(text, span):
    """Returns the range of characters of a span of lines and columns, which count from 1."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return tuple(starts[span[edge]["line"] - 1] + span[edge]["column"] - 1 for edge in ("start", "end"))


def fields_left_out(file, text, functions):
    """Yields a mutant for each statement that writes a field."""
    tests = text.find("#[cfg(test)]")
    for match in FIELD.finditer(text, 0, tests if tests >= 0 else len(text)):
        inside = [(name, span) for name, span in functions if span[0] <= match.start() and match.end() <= span[1]]
        if not inside:
            sys.exit(f"{file}: no function of cargo-mutants contains `{match[1]}`")
        name, span = inside[-1]
        yield Mutant(f"{file}: leave out {match[1]} in {name}", file, span, match.span(1), "()")


def listed():
    """Returns all mutants, each with a name of its own that no line number is part of."""
    subprocess.run([ROOT / ".ci" / "install-tools", "cargo-mutants"], check=True)
    command = ["cargo", "mutants", "--list", "--json", *(f"--file={pattern}" for pattern in ENCODING)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    by_file = collections.defaultdict(list)
    for one in json.loads(done.stdout):
        functions = next(it for pattern, it in ENCODING.items() if fnmatch.fnmatch(one["file"], pattern))
        if re.search(functions, (one["function"] or {"function_name": ""})["function_name"]):
            by_file[one["file"]].append(one)
    for pattern in ENCODING:
        if not fnmatch.filter(by_file, pattern):
            sys.exit(f"cargo-mutants lists no mutant of {pattern}")
    mutants = []
    for file, all_of_file in by_file.items():
        text = (ROOT / file).read_text()
        spans = {}
        for one in all_of_file:
            function = one["function"] and offsets(text, one["function"]["span"])
            if function:
                spans[function] = one["function"]["function_name"]
            name = re.sub(r":\d+:\d+:", ":", one["name"])
            mutants.append(Mutant(name, file, function, offsets(text, one["span"]), one["replacement"]))
        mutants.extend(fields_left_out(file, text, [(name, span) for span, name in sorted(spans.items())]))
    seen = collections.Counter()
    numbered = []
    for mutant in mutants:
        name = mutant.name.removeprefix(f"{QCOW2}/")
        seen[name] += 1
        numbered.append(mutant._replace(name=name if seen[name] == 1 else f"{name} ({seen[name]})"))
    return numbered


def replaced(text, start, end, replacement):
    """Returns a text in which a piece is another."""
    return text[:start] + replacement + text[end:]


def of_one_type(head, body):
    """Returns a body that has the same type as the others of its function, whose head may leave the type open."""
    if "-> impl Iterator" not in head:
        return body
    return f"{{ let bodies_of_one_type: Box<dyn Iterator<Item = _> + '_> = Box::new({body}); bodies_of_one_type }}"


def switched(text, mutants):
    """Returns a file's text in which each function has a body for each of its mutants, and which lines of it are which
    mutant's. `mutants` are pairs of a number and a mutant."""
    by_function = collections.defaultdict(list)
    for number, mutant in mutants:
        by_function[mutant.function].append((number, mutant))
    pieces, at, lines = [], 0, {}
    for (start, end), inside in sorted(by_function.items()):
        brace = text.index("{", start)
        # A number that the environment decides is none that the compiler knows.
        head = re.sub(r"\bconst fn\b", "fn", text[start:brace])
        pieces += [text[at:start], head, "{ match crate::mutant() {\n"]
        for number, mutant in inside:
            if not brace < mutant.piece[0] <= mutant.piece[1] < end:
                sys.exit(f"{mutant.name}: not in the body of its function")
            body = replaced(text[brace:end], mutant.piece[0] - brace, mutant.piece[1] - brace, mutant.replacement)
            before = "".join(pieces).count("\n") + 1
            pieces.append(f"{number} => {of_one_type(head, body)}\n")
            lines.update((line, number) for line in range(before, before + pieces[-1].count("\n")))
        pieces += ["_ => ", of_one_type(head, text[brace:end]), "\n} }"]
        at = end
    return "".join(pieces) + text[at:], lines


def write_if_new(path, content):
    """Writes a file whose content is another: cargo compares dates."""
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class Build:
    """A copy of the tree, in which mutants are built."""

    def __init__(self):
        WORK.mkdir(parents=True, exist_ok=True)
        # Two scripts would run each other's builds. The lock ends with this process.
        self.lock = open(WORK / "lock", "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"scripts/mutants is running in {ROOT}; wait for it, or use another clone")
        self.original = {path: (ROOT / path).read_bytes() for path in code_files()}
        for path in [path for path in TREE.rglob("*") if path.is_file()]:
            if path.relative_to(TREE) not in self.original:
                path.unlink()

    def cargo(self, changed):
        """Builds the tree with these files changed; returns the command's path, or the errors of the compiler: each a
        message, and the places (file, line) that it names."""
        for path, content in self.original.items():
            write_if_new(TREE / path, changed.get(str(path), content.decode()).encode())
        command = ["cargo", "build", "-q", "--example", "bounded", "--message-format=json", *PROFILE]
        # Cargo before 1.91 ignores the second variable and then shares nothing.
        folders = {"CARGO_TARGET_DIR": str(WORK / "build"), "CARGO_BUILD_BUILD_DIR": str(ROOT / "target")}
        environment = {**os.environ, **folders}
        done = subprocess.run(command, cwd=TREE, env=environment, capture_output=True, text=True)
        if done.returncode == 0:
            return WORK / "build" / "debug" / "examples" / "bounded", []
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        errors = [one["message"] for one in messages if one.get("message", {}).get("level") == "error"]
        found = []
        for error in errors:
            places = [(span["file_name"], span["line_start"]) for span in error["spans"]]
            places += [(file, line) for child in error["children"] for span in child["spans"]
                       for file, line in [(span["file_name"], span["line_start"])]]
            found.append((error["rendered"] or error["message"], places))
        return None, found or [(done.stderr, [])]

    def all_at_once(self, mutants):
        """Builds all `mutants` (number to mutant) that can be built together; returns the command's path and the numbers
        that are not in it."""
        left, alone = dict(mutants), {number for number, mutant in mutants.items() if not mutant.function}
        while True:
            changed, owners = {}, {}
            changed["src/lib.rs"] = self.original[pathlib.Path("src/lib.rs")].decode() + SWITCH
            by_file = collections.defaultdict(list)
            for number, mutant in left.items():
                if number not in alone:
                    by_file[mutant.file].append((number, mutant))
            for file, inside in by_file.items():
                changed[file], lines = switched(self.original[pathlib.Path(file)].decode(), inside)
                owners.update(((file, line), number) for line, number in lines.items())
            binary, errors = self.cargo(changed)
            if binary:
                return binary, alone
            blamed = {owners[place] for _, places in errors for place in places if place in owners}
            # What a constant calls is a constant function: none that chooses when it runs.
            called = {name for text, _ in errors for name in re.findall(r"non-const \w+ `(?:\w+::)*(\w+)`", text)}
            blamed |= {number for number in left.keys() - alone if self.function_name(left[number]) in called}
            if not blamed:
                sys.exit(f"the tree with all mutants does not build: {errors[0][0]}")
            print(f"{len(blamed)} mutants do not build with the others", file=sys.stderr, flush=True)
            alone |= blamed

    def function_name(self, mutant):
        """Returns the name of the function of a mutant that has one."""
        return re.search(r"\bfn (\w+)", self.original[pathlib.Path(mutant.file)].decode()[mutant.function[0]:])[1]

    def single(self, mutant):
        """Builds one mutant; returns the command's path, or None where it does not build."""
        text = self.original[pathlib.Path(mutant.file)].decode()
        return self.cargo({mutant.file: replaced(text, *mutant.piece, mutant.replacement)})[0]


def code_files(*folders):
    """Returns the files that a build consists of, and those of other folders."""
    listing = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard", "src", "crates", "examples", "benches",
                              "tests/small_writer", "Cargo.toml", "Cargo.lock", *folders], cwd=ROOT, capture_output=True, check=True).stdout
    return sorted(pathlib.Path(os.fsdecode(path)) for path in listing.split(b"\0") if path)
