#!/bin/sh
# What the bundled model is worth: `make quality` (twenty minutes on two cores, most of them for the judge, which is kept).
#
#     benchmarks/quality.sh [MODEL.gguf]   default: the bundled model
#
# On $PREDIFF_DATA/demo_corpus/valid.txt: nats a byte, causal and NELBO; texts at 4, 8, 16 and 32 steps from the beginnings of TEXTS
# stories, with Rep-4 and the perplexity a causal judge gives them (benchmarks/judge.sh: trained apart); ten gaps of infill5.jsonl.
# Writes the section "quality" of docs/results.md. Environment: TEXTS (24), PREDIFF (build/prediff).
set -eu
cd "$(dirname "$0")/.."
LC_ALL=C; export LC_ALL
model=${1:-examples/models/story-q8_0.gguf}
data=${PREDIFF_DATA:-../shared/data}/demo_corpus prediff=${PREDIFF:-build/prediff} texts=${TEXTS:-24} work=build/quality
prompt='Once upon a time, there was a little'
for f in "$model" "$data/valid.txt" "$data/infill5.jsonl"; do
    [ -f "$f" ] || { echo "quality.sh: skipped: $f is missing (PREDIFF_DATA is the folder with demo_corpus)" >&2; exit 0; }
done
mkdir -p $work
[ -f $work/judge.done ] || sh benchmarks/judge.sh $work/judge.gguf "$data" > $work/judge.txt
touch $work/judge.done

number() { sed 's/.*"'"$2"'": *\([-0-9.e+]*\).*/\1/' "$1"; }
$prediff eval -m "$model" -f "$data/valid.txt" --task ppl --stories --json > $work/causal.json
$prediff eval -m "$model" -f "$data/valid.txt" --task nelbo --draws 32 --json > $work/nelbo.json

# the first eight words of the first stories, and their first eighty
awk -v mark='<|endoftext|>' -v most="$texts" -v to="$work" '
    function out() { if (n >= 80 && k < most) { print first > (to "/prompts.txt"); print text "\n" mark > (to "/people.txt"); k++ } n = 0; first = text = "" }
    $0 == mark { out(); next }
    { for (i = 1; i <= NF; i++) { n++; if (n <= 80) text = text (n > 1 ? " " : "") $i; if (n <= 8) first = first (n > 1 ? " " : "") $i } }
    END { out() }' "$data/valid.txt"

write() { $prediff generate -m "$model" -p "$1" -n 96 --ignore-eos --json $2; }
unquote() { sed 's/\\n/ /g; s/\\"/"/g; s/\\\\/\\/g'; }
rep4() { awk '{ gsub(/.*"tokens": \[|\].*/, ""); n = split($0, t, ", "); split("", seen); u = 0; for (i = 1; i + 3 <= n; i++) { g = t[i] " " t[i+1] " " t[i+2] " " t[i+3]; if (!(g in seen)) { seen[g]; u++ } }
    s += 1 - u / (n - 3) } END { printf "%.3f", s / NR }' "$1"; }
row() {                                    # NAME FLAGS: texts from every prompt, judged
    : > $work/$1.jsonl; : > $work/$1.txt
    while IFS= read -r line; do
        write "$line" "$2" > $work/one.json
        cat $work/one.json >> $work/$1.jsonl
        { printf '%s' "$line"; sed 's/^{"text": "\(.*\)", "tokens".*/\1/' $work/one.json | unquote; echo '<|endoftext|>'; } >> $work/$1.txt
    done < $work/prompts.txt
    $prediff eval -m $work/judge.gguf -f $work/$1.txt --task ppl --stories --json > $work/$1.judged
    echo "| $3 | $(rep4 $work/$1.jsonl) | $(number $work/$1.judged perplexity) | $(number $work/$1.judged nats_per_byte) |"
}
table() {
    echo '| texts | Rep-4 | perplexity a token of the judge | nats a byte |'
    echo '|---|---|---|---|'
    for steps in 4 8 16 32; do row greedy-$steps "--steps $steps" "$steps steps, greedy"; done
    for steps in 4 8 16 32; do row warm-$steps "--steps $steps --temp 0.7" "$steps steps, temperature 0.7"; done
    row causal '--sampler causal --temp 0.7' 'causal, one token at a time, temperature 0.7'
    $prediff eval -m $work/judge.gguf -f $work/people.txt --task ppl --stories --json > $work/people.judged
    echo "| the stories themselves | | $(number $work/people.judged perplexity) | $(number $work/people.judged nats_per_byte) |"
}
gaps() {                                   # ten lines of infill5.jsonl: the model's sentence, then the story's
    head -n 10 "$data/infill5.jsonl" | unquote | while IFS= read -r line; do
        before=${line#*\"prefix\": \"}; before=${before%%\", \"target\"*}
        target=${line#*\"target\": \"}; target=${target%%\", \"suffix\"*}
        after=${line#*\"suffix\": \"}; after=${after%\"\}*}
        n=$(printf '%s' "$target" | awk '{ printf "%d", length($0) / 3.4 + 0.5 }')
        text=$($prediff infill -m "$model" -p "$before [MASK:$n] $after" --steps 16 < /dev/null 2> /dev/null | tr '\n' ' ')
        text=$(printf '%s' "${text#"$before"}" | sed 's/^ *//; s/ *$//')
        text=$(printf '%s' "${text%"$after"}" | sed 's/ *$//')
        printf '%s\n' "- $before **$text** $after (the story: *$target*)"
    done
}
{
    echo '## The bundled model'
    echo
    echo "\`make quality\`: $(wc -c < "$model" | tr -d ' ') bytes, $($prediff info "$model" | awk '$1 == "model" { print $3 }') parameters. On valid.txt of the demo corpus, windows of 256 tokens: causal $(number $work/causal.json nats_per_byte) nats a byte"
    echo "($(number $work/causal.json nats_per_token) a token, $(number $work/causal.json windows) windows); NELBO of each window's second half given the first $(number $work/nelbo.json nats_per_byte) nats a byte ($(number $work/nelbo.json nats_per_token) a token,"
    echo "standard error $(number $work/nelbo.json std_error), exact-l, 32 maskings a window)."
    echo
    echo "Texts: the first eight words of $texts stories of valid.txt, continued by 96 tokens. Rep-4: the share of 4-grams of tokens that stood in the same text before, mean over texts."
    echo 'The judge reads prompt and continuation, packed into windows of 256 of its tokens.'
    echo
    table
    echo
    sed 's/  */ /; s/^/- /' $work/judge.txt
    echo
    echo "\`$prompt\`, greedy with \`--no-repeat 4\`:"
    echo
    for steps in 4 8 16 32; do printf '%s\n' "- $steps steps: $($prediff generate -m "$model" -p "$prompt" -n 64 --steps $steps --no-repeat 4 --echo 2> /dev/null | tr '\n' ' ')"; done
    echo
    echo 'Ten sentences taken out of stories, 16 steps, greedy (a gap has a token for each 3.4 bytes of what was there):'
    echo
    gaps
} > $work/results.md
sh benchmarks/section.sh quality $work/results.md docs/results.md
