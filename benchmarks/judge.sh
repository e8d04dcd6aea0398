#!/bin/sh
# A judge for benchmarks/quality.sh: a causal model trained apart from the model it judges, on every second story, with a
# tokenizer and a seed of its own.
#
#   sh benchmarks/judge.sh OUT.gguf [DATA_DIR [MINUTES]]
#
# DATA_DIR holds train.txt, stories between <|endoftext|> marks (default: ${PREDIFF_DATA:-../shared/data}/demo_corpus).
# MINUTES stops early, before the learning rate has come down: prefer fewer UPDATES. A run that was stopped goes on when it is
# started again with the same arguments. Environment: UPDATES (1200), THREADS (default: the tool's), PREDIFF (the binary).
set -eu
LC_ALL=C; export LC_ALL
[ $# -ge 1 ] && [ $# -le 3 ] || { sed -n 2,9p "$0" >&2; exit 2; }
out=$1 data=${2:-${PREDIFF_DATA:-../shared/data}/demo_corpus} minutes=${3:-0}
prediff=${PREDIFF:-$(dirname "$0")/../build/prediff} updates=${UPDATES:-1200}
[ -x "$prediff" ] || { echo "judge.sh: no $prediff: run make" >&2; exit 1; }
[ -f "$data/train.txt" ] || { echo "judge.sh: no $data/train.txt" >&2; exit 1; }

tmp=${TMPDIR:-/tmp}/prediff-judge.$$
mkdir "$tmp"
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

# stories 2, 4, 6, ... of the file
awk -v mark='<|endoftext|>' '$0 == mark { if (n % 2) print; n++; next } n % 2' "$data/train.txt" > "$tmp/half.txt"
"$prediff" tokenizer -d "$tmp/half.txt" -n 2048 -o "$tmp/tokens.gguf" >&2
"$prediff" train --new d=192,layers=6,heads=6,kv=3,ff=576,ctx=256 --tokenizer "$tmp/tokens.gguf" -d "$tmp/half.txt" -o "$out" \
    --objective causal --seed 77 --steps "$updates" --batch 8 --lr 0.003 --minutes "$minutes" ${THREADS:+-t $THREADS} --resume --force >&2

"$prediff" info --json "$out" > "$tmp/info.json"
echo "judge           $(basename "$out"), $(wc -c < "$out" | tr -d ' ') bytes, $("$prediff" info "$out" | awk '$1 == "model" { print $3, "parameters" }')"
echo "learnt from     every second story of train.txt: $(grep -c '^<|endoftext|>$' "$tmp/half.txt") stories, $(wc -c < "$tmp/half.txt" | tr -d ' ') bytes"
echo "tokenizer       its own, byte-level BPE of 2,048 tokens trained on the same stories"
echo "training        causal, seed 77, $updates updates of 8 windows of 256 tokens, learning rate 0.003$([ "$minutes" = 0 ] || echo ", at most $minutes minutes")"
