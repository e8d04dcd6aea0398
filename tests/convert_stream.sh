#!/bin/sh
# prediff-convert's memory: a large sharded checkpoint is made, converted to Q8_0 and to BF16, and deleted. The peak must stay
# below 1.3 times the largest tensor plus 8 times the tokenizer file plus the bare process (that of --version), and a folder must
# convert in 2 GB of address space. STREAM_MB sets the size (3000); STREAM_DIR where it is made; with 200 it takes seconds.
. tests/lib.sh
DATA=${PREDIFF_DATA:-../shared/data}
CONVERT=${CONVERT:-build/prediff-convert}
MB=${STREAM_MB:-3000}
W=${STREAM_DIR:-$OUT}/convert-stream
BIG=$OUT/make_big
[ -x $CONVERT ] || make -s $CONVERT
rm -rf $W
mkdir -p $W
check "the generator compiles" $CC -std=c99 -O2 tests/make_big.c -o $BIG || { rm -rf $W; totals; exit 1; }
free=$(df -Pk $W | awk 'END { print int($4 / 1000) }')
if [ "$free" -lt $((2 * MB + MB / 4 + 500)) ]; then skip "prediff-convert on $MB MB: $free MB of disk are free"; rm -rf $W; totals; exit 0; fi
bare=$($BIG measure $CONVERT --version 2>&1 | tail -n 1 | cut -d ' ' -f 1)

# stream NAME TYPE BOUND INPUT OUTPUT KB: peak within the bound, in so much address space; speed is told
stream() {
    name="$1 to $2" bound=$3 out=$5
    said=$( (ulimit -v $6; $BIG measure $CONVERT -q $4 $out --type $2) 2> $W/stderr)
    same "$name: exit status ($(cat $W/stderr))" 0 $?
    set -- $said
    echo "$name, $MB MB: $2 s, peak $(($1 / 1024)) MiB of $((bound / 1024)) MiB (the bare process has $((bare / 1024)))"
    check "$name: peak $1 KiB, at most $bound" test $1 -le $bound
    check "$name: the result" $CONVERT --check $out
}

for kind in llama gpt2; do
    case $kind in llama) source=BF16 ;; *) source=F16 ;; esac
    largest=$($BIG folder $kind $source $MB $W/in)
    same "the $kind folder is made" 0 $?
    if [ $kind = llama ] && [ $MB -ge 1000 ] && [ -f $DATA/tok_llama3/tokenizer.json ]; then cp $DATA/tok_llama3/tokenizer.json $W/in; fi
    bound=$((largest / 1000 * 13 / 10 + 8 * $(wc -c < $W/in/tokenizer.json) / 1000 + bare))
    stream "$kind, $source" q8_0 $bound $W/in $W/out.gguf 2000000
    rm -f $W/out.gguf
    stream "$kind, $source" bf16 $bound $W/in $W/out.gguf 2000000
    rm -rf $W/in
    if [ $kind = llama ]; then stream "GGUF of BF16" q8_0 $bound $W/out.gguf $W/last.gguf unlimited; fi     # it is mapped
    rm -f $W/*.gguf
done
rm -rf $W
totals
