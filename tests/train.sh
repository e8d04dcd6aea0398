#!/bin/sh
# prediff train and prediff tokenizer as a user runs them: a resumed run is the unbroken one, nothing is overwritten, every
# objective runs, a new model comes from nothing.
. tests/lib.sh
P=${PREDIFF:-build/prediff}
MODEL=examples/models/story-q8_0.gguf
W=$OUT/train
[ -x $P ] || make -s $P
rm -rf $W
mkdir -p $W

# status NAME WANTED COMMAND...: exit status
status() {
    name=$1 wanted=$2; shift 2
    "$@" > $W/stdout 2> $W/stderr
    same "$name ($(tail -n 1 $W/stderr))" $wanted $?
}

# a tokenizer, a small model from nothing, in seconds
status "tokenizer" 0 $P tokenizer -d README.md -n 400 -o $W/tok.gguf
status "tokenizer: the output is there" 1 $P tokenizer -d README.md -n 400 -o $W/tok.gguf
small="-d README.md -c 32 --batch 2 --eval-texts 4 -t 1"
status "a new model" 0 $P train --new d=32,layers=2,heads=2,ctx=64 --tokenizer $W/tok.gguf $small -o $W/new.gguf --objective causal --steps 3
status "a new model writes" 0 $P generate -m $W/new.gguf -p prediff -n 8
status "a new GPT-2" 0 $P train --new arch=gpt2,d=32,layers=1,heads=2,ctx=64 --tokenizer $W/tok.gguf $small -o $W/new2.gguf --objective causal --steps 2
status "sizes that do not fit" 2 $P train --new d=30,heads=4 --tokenizer $W/tok.gguf $small -o $W/x.gguf
status "no tokenizer" 2 $P train --new d=32 $small -o $W/x.gguf

# every objective, every law, the other settings
for o in prediff mdlm exact-l diffugpt cart sedd; do
    status "objective $o" 0 $P train -m $W/new.gguf $small -o $W/$o.gguf --objective $o --steps 2
    status "objective $o: it fills masks" 0 $P infill -m $W/$o.gguf -p 'a [MASK:4] b'
done
for set in '--rates cosine' '--rates square' '--rates logit-normal' '--complementary' '--blocks 2 --block 8' '--attention bidirectional' '--anneal 2' '--shift' '--ema 0.9' \
    '--recompute' '--accumulate 2' '--add mask,noise=8' '--lr-decay linear' '--type q8_0' '--selfcond 1' '--causal-weight 0'; do
    status "train $set" 0 $P train -m $W/new.gguf $small -o $W/set.gguf --force --steps 2 $set
done

# two steps and two more are four
long="$small --steps 4 --eval-every 2 --save-every 2"
status "unbroken" 0 $P train -m $W/new.gguf $long -o $W/whole.gguf
status "interrupted" 0 $P train -m $W/new.gguf $long -o $W/half.gguf --minutes 0.000001
status "resumed" 0 $P train $long -o $W/half.gguf --resume
check "a resumed run gives the unbroken run's weights and state" cmp $W/whole.gguf.checkpoint $W/half.gguf.checkpoint
check "and its best model" cmp $W/whole.gguf $W/half.gguf
status "threads" 0 $P train -m $W/new.gguf $small --steps 4 --eval-every 2 --save-every 2 -t 2 -o $W/two.gguf
check "two threads give the same weights" cmp $W/whole.gguf.checkpoint $W/two.gguf.checkpoint

# nothing is learnt at rate 0, so two validations after the first end a run, resumed or not
still="$small --steps 10 --eval-every 1 --patience 2 --lr 0"
status "patience, interrupted" 0 $P train -m $W/new.gguf $still -o $W/still.gguf --minutes 0.000001
status "patience, interrupted again" 0 $P train $still -o $W/still.gguf --resume --minutes 0.000001
status "patience, resumed" 0 $P train $still -o $W/still.gguf --resume
check "a resumed run has the patience of the unbroken one" grep -q 'stopped early at step 3 of 10' $W/stderr

# nothing is lost by a wrong word
status "an output that is there" 1 $P train -m $W/new.gguf $small -o $W/whole.gguf --steps 1
cp README.md $W/text
status "the text as output" 1 $P train -m $W/new.gguf -d $W/text -c 32 -o $W/text --force --steps 1
check "the text is untouched" cmp README.md $W/text
echo 'Too short.' > $W/short
status "a text too short" 1 $P train -m $W/new.gguf -d $W/short -c 32 -o $W/x.gguf --steps 1
status "no output" 2 $P train -m $W/new.gguf -d README.md
status "no text" 2 $P train -m $W/new.gguf -o $W/x.gguf
status "a folder that is not there" 1 $P train -m $W/new.gguf $small -o $W/nowhere/x.gguf
status "an unknown addition" 2 $P train -m $W/new.gguf $small -o $W/x.gguf --add masks
check "nothing is left of what failed" test ! -e $W/x.gguf
status "JSON" 0 $P train -m $MODEL -d README.md -c 32 --batch 2 --eval-texts 2 --steps 1 -t 1 -o $W/json.gguf --json --log $W/log
check "JSON names the loss" grep -q '"loss": [0-9]' $W/stdout
check "the log has a line for the step and one for the validation" test $(wc -l < $W/log) -eq 2
rm -rf $W
totals
