#!/bin/sh
# The bundled model, from text to file: `make story` (70 minutes on two cores; killed and started again it goes on where it was).
#
#     benchmarks/story.sh [OUT.gguf]       default build/story/story-q8_0.gguf
#
# Text: train.txt of the demo corpus in $PREDIFF_DATA/demo_corpus (simple English stories, one per <|endoftext|>). A byte-level
# BPE of 2,048 tokens; a causal model from random weights; then PreDiff-LM's adaptation: hybrid mask, mask-rate embedding,
# self-conditioning, and the next-token loss kept on prompt rows. valid.txt is never seen: the last 3 % of train.txt choose the best.
set -eu
cd "$(dirname "$0")/.."
corpus=${PREDIFF_DATA:-../shared/data}/demo_corpus/train.txt
work=build/story
out=${1:-$work/story-q8_0.gguf}
[ -f "$corpus" ] || { echo "story.sh: $corpus is missing: set PREDIFF_DATA to the folder that holds demo_corpus" >&2; exit 1; }
mkdir -p $work
[ -f $work/tokenizer.gguf ] || build/prediff tokenizer -d "$corpus" -n 2048 -o $work/tokenizer.gguf

train() { build/prediff train -d "$corpus" --batch 8 --warmup 200 --eval-every 500 --eval-texts 128 --save-every 500 --resume --force "$@"; }
[ -f $work/causal.done ] || train --new d=192,layers=6,heads=6,kv=3,ff=576,ctx=256 --tokenizer $work/tokenizer.gguf \
    --objective causal --steps 4500 --lr 0.003 -s 1 -o $work/causal.gguf --log $work/causal.jsonl
touch $work/causal.done
[ -f $work/hybrid.done ] || train -m $work/causal.gguf --steps 9000 --lr 0.002 -s 2 -o $work/hybrid.gguf --log $work/hybrid.jsonl
touch $work/hybrid.done
build/prediff-convert $work/hybrid.gguf "$out" --type q8_0
