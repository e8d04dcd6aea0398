#!/bin/sh
# Puts a section into a page: the lines between <!-- NAME --> and <!-- /NAME --> of PAGE become those of TEXT; where the marks
# are missing they are added at the end.
#
#     benchmarks/section.sh NAME TEXT PAGE
set -eu
[ $# -eq 3 ] || { sed -n 2,5p "$0" >&2; exit 2; }
[ -f "$3" ] || : > "$3"
grep -qF "<!-- $1 -->" "$3" || printf '\n<!-- %s -->\n<!-- /%s -->\n' "$1" "$1" >> "$3"
awk -v name="$1" -v text="$2" '
    $0 == "<!-- /" name " -->" { inside = 0 }
    !inside { print }
    $0 == "<!-- " name " -->" { inside = 1; while ((getline line < text) > 0) print line }' "$3" > "$3.tmp"
mv "$3.tmp" "$3"
