#!/usr/bin/env python3
"""Is every check tested?  Deletes each `if (...) return PDI_FAIL...;` of the sections that read files, one at a time, builds
the tests anew and expects one of them to fail.  Prints the survivors; the last line is the total.

    python3 tests/mutate.py [--count] [--lines FIRST LAST]      from the repository root
"""
import os
import re
import subprocess
import sys

SECTIONS = ("GGUF", "HPARAMS", "TOKENIZER", "MODEL")
OUT = "build/tests/mutants"
CC = os.environ.get("CC", "cc")

# Guards whose loss no test can see, each with its reason (the text is looked for in the guard).
EXCUSED = {
    "alignment %u wraps": "needs a header that fills the address space",
    "is beyond memory": "offsets above SIZE_MAX exist on 32-bit machines only",
    "are larger than memory": "sizes above SIZE_MAX exist on 32-bit machines only",
    "do not fit in memory": "an arena that overflows needs sizes the limits forbid",
    "the file ends in its array": "reading on, the next check finds the same end",
    "the file ends before its value": "reading on, the next check finds the same end",
    "%u merges\"": "four billion merges do not fit in a test",
}


def section(text, tag):
    begin = text.index("/* ---- >>%s:" % tag)
    end = text.find("/* ---- >>", begin + 1)
    return begin, end if end > 0 else len(text)


def skip_quoted(text, i):
    """The index after the string or character literal that begins at i."""
    quote = text[i]
    i += 1
    while text[i] != quote:
        i += 2 if text[i] == "\\" else 1
    return i + 1


def balanced(text, i, stop):
    """The index after the character `stop` at depth 0, from i on."""
    depth = 0
    while True:
        c = text[i]
        if c in "\"'":
            i = skip_quoted(text, i)
            continue
        if c in "([{":
            depth += 1
        if c in ")]}":
            depth -= 1
        i += 1
        if c == stop and depth == 0:
            return i


def guards(text):
    """(begin, end) of each guard; a comment that stands before the condition's end is no problem, none stands inside."""
    for tag in SECTIONS:
        begin, end = section(text, tag)
        for m in re.finditer(r"\bif \(", text[begin:end]):
            at = begin + m.start()
            after = balanced(text, at + 3, ")")
            if re.match(r"\s*return PDI_FAIL(_AT)?\(", text[after:]):
                yield at, balanced(text, after, ";")


def build(test):
    command = [CC, "-std=c99", "-O0", "-w", "-I" + OUT, "-I.", "-Itests", test, "-o", OUT + "/test", "-lm"]
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def fails(only=None):
    env = dict(os.environ, PD_TMP=OUT)
    if only:
        env["PD_ONLY"] = only
    try:
        return subprocess.run([OUT + "/test"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def killed():
    """None: does not compile."""
    if not build("tests/test_robust.c"):
        return None
    if fails("test_corpus") or fails():
        return True
    for test, only in (("tests/test_text.c", None), ("tests/test_api.c", "test_a01_null_open")):
        if not build(test) or fails(only):
            return True
    return False


def main():
    text = open("prediff.h").read()
    found = list(guards(text))
    if "--count" in sys.argv:
        print(len(found), "guards")
        return 0 if len(found) > 60 else 1
    first, last = 1, 1 << 30
    if "--lines" in sys.argv:
        at = sys.argv.index("--lines")
        first, last = int(sys.argv[at + 1]), int(sys.argv[at + 2])
    os.makedirs(OUT, exist_ok=True)
    passed = failed = skipped = 0
    for begin, end in found:
        line = text.count("\n", 0, begin) + 1
        guard = " ".join(text[begin:end].split())
        if not first <= line <= last:
            continue
        reason = next((r for t, r in EXCUSED.items() if t in guard), None)
        if reason:
            skipped += 1
            print("SKIPPED line %d: %s" % (line, reason))
            continue
        with open(OUT + "/prediff.h", "w") as f:
            f.write(text[:begin] + "(void)0;" + text[end:])
        result = killed()
        if result:
            passed += 1
        elif result is None:
            skipped += 1
            print("SKIPPED line %d does not compile without: %s" % (line, guard[:150]))
        else:
            failed += 1
            print("SURVIVES line %d: %s" % (line, guard[:200]), flush=True)
    print("%d passed, %d failed, %d skipped" % (passed, failed, skipped))
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
