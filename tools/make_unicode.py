#!/usr/bin/env python3
"""Prints the tables of letters and numbers in prediff.h (section TOKENIZER): python3 tools/make_unicode.py

Each table is a list of pairs (skip, run): skip code points that are not in the class, then run that are. Python's
unicodedata is the source; its Unicode version is printed first. Version 14.0 made the tables in the header.
"""
import sys
import unicodedata


def pairs(initial):
    out, at, member = [], 0, False
    for c in range(sys.maxunicode + 2):
        now = c <= sys.maxunicode and unicodedata.category(chr(c))[0] == initial
        if now != member:
            out.append(c - at)
            at, member = c, now
    assert len(out) % 2 == 0 and max(out) < 65536
    return out


def show(name, numbers):
    print(f"static const uint16_t {name}[{len(numbers)}] = {{")
    line = "   "
    for n in numbers:
        if len(line) + len(f" {n},") > 148:
            print(line)
            line = "   "
        line += f" {n},"
    print(line[:-1])
    print("};")


print(f"/* Unicode {unicodedata.unidata_version} */", file=sys.stderr)
show("pdi_letters", pairs("L"))
show("pdi_numbers", pairs("N"))
