#!/bin/sh
# The objectives side by side: `make science` (half an hour on two cores; killed and started again it goes on with the next run).
#
#     benchmarks/science.sh [WORK_DIR]     default build/science
#
# One small causal model (stories260K, 260 thousand parameters, of $PREDIFF_DATA/stories260k) learns diffusion on the stories of
# $PREDIFF_DATA/demo_corpus in six ways, each from seeds 1, 2, 3, with equally many updates of equally many tokens; one more goes
# on being causal. Writes docs/objectives.svg and the section "objectives" of docs/results.md.
# Environment: UPDATES (480), RATE (0.002), LIMIT (60 windows of valid.txt), PREDIFF (build/prediff).
set -eu
cd "$(dirname "$0")/.."
LC_ALL=C; export LC_ALL
data=${PREDIFF_DATA:-../shared/data} prediff=${PREDIFF:-build/prediff}
updates=${UPDATES:-480} rate=${RATE:-0.002} limit=${LIMIT:-60}
work=${1:-build/science} start=$data/stories260k/stories260K-f32.gguf corpus=$data/demo_corpus
page=docs/results.md plot=docs/objectives.svg
for f in "$start" "$corpus/train.txt" "$corpus/valid.txt"; do
    [ -f "$f" ] || { echo "science.sh: skipped: $f is missing (PREDIFF_DATA is the folder with stories260k and demo_corpus)" >&2; exit 0; }
done
mkdir -p "$work"
anneal=$((updates / 2)) every=$((updates / 12))

methods='hybrid hybrid-only uniform annealed diffugpt mdlm-scratch causal'
settings() {                               # METHOD: what differs
    case $1 in
    hybrid) echo "-m $start" ;;
    hybrid-only) echo "-m $start --causal-weight 0" ;;
    uniform) echo "-m $start --attention bidirectional --causal-weight 0" ;;
    annealed) echo "-m $start --anneal $anneal --causal-weight 0" ;;
    diffugpt) echo "-m $start --objective diffugpt --anneal $anneal --causal-weight 0" ;;
    mdlm-scratch) echo "--new d=64,layers=5,heads=8,kv=4,ff=172,ctx=512 --tokenizer $start --objective mdlm --attention bidirectional --causal-weight 0" ;;
    causal) echo "-m $start --objective causal" ;;
    esac
}
title() {
    case $1 in
    hybrid) echo 'hybrid mask, causal loss on prompt rows (PreDiff, our recipe)' ;;
    hybrid-only) echo 'hybrid mask, no causal loss' ;;
    uniform) echo 'bidirectional from the first update' ;;
    annealed) echo "attention opened over $anneal updates" ;;
    diffugpt) echo "DiffuGPT: shifted, 1/t, attention opened over $anneal updates" ;;
    mdlm-scratch) echo 'MDLM from random weights' ;;
    causal) echo 'causal control' ;;
    esac
}

one() {                                    # METHOD SEED: train, then score; what is there stays
    base=$work/$1-$2
    [ -f "$base.done" ] || {
        $prediff train $(settings "$1") -d "$corpus/train.txt" -c 256 --batch 8 --steps $updates --lr $rate --warmup 50 -s "$2" -t 1 \
            --eval-every $every --eval-texts 32 --save-every $updates --force --log "$base.jsonl" -o "$base.gguf" 2> "$base.said"
        rm -f "$base.gguf.checkpoint"
        [ "$1" = causal ] || $prediff eval -m "$base.gguf" -f "$corpus/valid.txt" --task nelbo --window 256 --draws 16 --limit "$limit" -t 1 --json > "$base.nelbo"
        case $1 in hybrid | hybrid-only | causal) $prediff eval -m "$base.gguf" -f "$corpus/valid.txt" --task ppl --stories --window 256 --attention causal \
            --limit "$limit" -t 1 --json > "$base.ppl" ;; esac
        touch "$base.done"
        echo "science.sh: $1, seed $2: done" >&2
    }
}
lane() { turn=$1; n=0; for seed in 1 2 3; do for method in $methods; do [ $((n % 2)) -ne "$turn" ] || one $method $seed; n=$((n + 1)); done; done; }
lane 0 & first=$!
lane 1
wait $first

# -- the table --

[ -f "$work/start.ppl" ] || $prediff eval -m "$start" -f "$corpus/valid.txt" --task ppl --stories --window 256 --limit "$limit" --json > "$work/start.ppl"
number() { sed 's/.*"'"$2"'": *\([-0-9.e+]*\).*/\1/' "$1"; }
# mean and spread over seeds of e^(nats a token): METHOD SUFFIX
perplexity() {
    for seed in 1 2 3; do [ ! -f "$work/$1-$seed.$2" ] || number "$work/$1-$seed.$2" nats_per_token; done |
        awk '{ p = exp($1); s += p; if (NR == 1 || p < lo) lo = p; if (p > hi) hi = p } END { if (NR) printf "%.2f (%.2f to %.2f)", s / NR, lo, hi; else printf "-" }'
}
curve() { for seed in 1 2 3; do awk -F'[:,}]' '/"validation"/ { print $4 + 0, $10 + 0 }' "$work/$1-$seed.jsonl"; done | awk '!($1 in n) { order[++k] = $1 } { s[$1] += $2; n[$1]++ }
    END { for (i = 1; i <= k; i++) print order[i], s[order[i]] / n[order[i]] }'; }
for method in $methods; do [ $method = causal ] || curve $method > "$work/$method.curve"; done
goal=$(tail -n 1 "$work/mdlm-scratch.curve" | cut -d' ' -f2)
reach() { awk -v goal="$goal" '$2 <= goal && !n { n = $1 } END { if (n) print n; else print "not reached" }' "$work/$1.curve"; }
{
    echo '## Objectives'
    echo
    echo "\`make science\`: stories260K (260 thousand parameters, causal) taught on train.txt of the demo corpus: $updates updates of 8 texts of 256 tokens, learning rate $rate"
    echo "falling as a cosine, seeds 1, 2, 3, one thread each. Perplexities a token (a vocabulary of 512) on the first $limit windows of 256 tokens of valid.txt, mean (smallest to"
    echo 'largest over the seeds). NELBO: the second half of each window given the first, exact-l, 16 maskings a window, the same for all. Causal: the same windows whole, with the'
    echo "causal mask; the start has $(awk -v n="$(number "$work/start.ppl" nats_per_token)" 'BEGIN { printf "%.2f", exp(n) }'). The last column: updates until the validation inside training is as low as MDLM's from random weights at the end ($goal nats a token),"
    echo "looked at every $every updates, mean curve of the seeds."
    echo
    echo '| objective | NELBO perplexity | causal perplexity | updates |'
    echo '|---|---|---|---|'
    for method in $methods; do
        if [ $method = causal ]; then echo "| $(title $method) | - | $(perplexity $method ppl) | - |"
        else echo "| $(title $method) | $(perplexity $method nelbo) | $(perplexity $method ppl) | $(reach $method) |"; fi
    done
    echo
    echo '![Validation NELBO over updates](objectives.svg)'
    echo
    echo 'What differs, in flags of `prediff train`:'
    echo
    for method in $methods; do echo "- $method: \`$(settings $method | sed "s#$data/##g")\`"; done
} > "$work/results.md"
for method in hybrid hybrid-only uniform annealed diffugpt mdlm-scratch; do sed "s/^/$method /" "$work/$method.curve"; done | awk -f benchmarks/plot.awk > "$plot.tmp"
mv "$plot.tmp" "$plot"
sh benchmarks/section.sh objectives "$work/results.md" $page
echo "science.sh: $page and $plot are written" >&2
