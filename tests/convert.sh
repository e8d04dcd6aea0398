#!/bin/sh
# prediff-convert from outside: what goes in, what comes out, what is refused and how, what is left on disk. Needs cc, make and sh.
# With the material of PREDIFF_DATA also real files: one model in seven forms, GPT-2 under four sets of names, configs.
. tests/lib.sh
DATA=${PREDIFF_DATA:-../shared/data}
CONVERT=${CONVERT:-build/prediff-convert}
PREDIFF=build/prediff
PROBE=$OUT/convert_probe
DEMO=examples/models/story-q8_0.gguf
W=$OUT/convert
[ -x $CONVERT ] || make -s $CONVERT || { failed=1; totals; exit 1; }
[ -x $PREDIFF ] || make -s $PREDIFF
check "the probe compiles" $CC -std=c99 -O1 -I. -Itests tests/convert_probe.c $LDLIBS -o $PROBE || { totals; exit 1; }
rm -rf $W && mkdir -p $W

# convert ARGUMENTS...: must work, in silence
convert() { check "convert $*" $CONVERT -q "$@" && same "convert $*: silence" '' "$(cat $OUT/check.log)"; }
probe() { check "$*" $PROBE "$@"; }

# refused NAME STATUS TEXT ARGUMENTS...: the exit status, a message with TEXT on standard error, nothing on standard output
refused() {
    refused_name=$1 refused_status=$2 refused_text=$3; shift 3
    $CONVERT "$@" > $W/stdout 2> $W/stderr
    same "$refused_name: exit status" $refused_status $?
    same "$refused_name: standard output" '' "$(cat $W/stdout)"
    if grep -qF -e "$refused_text" $W/stderr; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAIL $refused_name: no '$refused_text' in: $(cat $W/stderr)"; fi
}
absent() { for absent_path in "$@"; do same "$absent_path is not left behind" '' "$(ls -d "$absent_path" 2> /dev/null)"; done; }
type_is() { same "type of $2 in $1" "$3" "$($PROBE type "$1" "$2")"; }
keys_of() { $PREDIFF info -m "$1" | sed -n '/^keys/,/^model/p'; }
has_key() { check "$1 has the key $2" sh -c "$PREDIFF info -m '$1' | grep -q -e '^  $2 .* $3\$'"; }

# -- the command line --

refused 'no arguments' 2 'prediff-convert: '
refused 'no output' 2 'prediff-convert: ' $DEMO
refused 'three paths' 2 'extra' $DEMO $W/a.gguf extra
refused 'unknown option' 2 '--nonsense' $DEMO $W/a.gguf --nonsense
refused 'unknown type' 2 'q5_0' $DEMO $W/a.gguf --type q5_0
refused 'type without value' 2 '--type' $DEMO $W/a.gguf --type
refused 'unknown target' 2 'onnx' $DEMO $W/a.gguf --to onnx
refused 'strip and add' 2 '--strip' $DEMO $W/a.gguf --strip --add $DEMO
refused 'safetensors cannot hold blocks' 2 'Q8_0' $DEMO $W/a --to hf --type q8_0
refused 'mask token' 2 '--mask-token' $DEMO $W/a.gguf --mask-token x
refused 'check and more' 2 '--check' --check $DEMO $W/a.gguf
absent $W/a $W/a.gguf $W/a.gguf.tmp
check '--help' $CONVERT --help
for option in --type --keep --tokenizer --strip --add --dry-run --force --to --check; do
    check "--help tells $option" sh -c "$CONVERT --help | grep -q -e $option"
done
same '--version' "prediff-convert $($PREDIFF --version | tr -dc '0-9.')" "$($CONVERT --version)"

# -- GGUF to GGUF, with the bundled model --

convert $DEMO $W/copy.gguf
probe same $DEMO $W/copy.gguf
same 'keys of a copy' "$(keys_of $DEMO)" "$(keys_of $W/copy.gguf)"
convert $DEMO $W/f32.gguf --type f32
probe values $DEMO $W/f32.gguf
type_is $W/f32.gguf token_embd.weight F32
convert $W/f32.gguf $W/q8.gguf --type q8_0
probe same $DEMO $W/q8.gguf                                # to floats and back loses nothing
for type in f16 bf16 q4_0; do
    convert $W/f32.gguf $W/$type.gguf --type $type
    type_is $W/$type.gguf blk.0.attn_q.weight $(echo $type | tr a-z A-Z)
    type_is $W/$type.gguf output_norm.weight F32
    type_is $W/$type.gguf prediff.mask.weight F32
done
probe near $W/f32.gguf $W/f16.gguf 0.0005
probe near $W/f32.gguf $W/bf16.gguf 0.004
probe near $W/f32.gguf $W/q4_0.gguf 0.12
convert $W/q4_0.gguf $W/q4-f32.gguf --type f32             # a quantised file computes what its floats compute
probe values $W/q4_0.gguf $W/q4-f32.gguf
write() { $PREDIFF generate -m "$1" -p 'One day' -n 24 --steps 8 -s 4 -t 1 2>&1; }
same 'text of a quantised file and of its floats' "$(write $W/q4_0.gguf)" "$(write $W/q4-f32.gguf)"
same 'text after two conversions' "$(write $DEMO)" "$(write $W/q8.gguf)"

convert $W/f32.gguf $W/keep.gguf --type q8_0 --keep 'token_embd*' --keep 'blk.1.*'
type_is $W/keep.gguf token_embd.weight F32
type_is $W/keep.gguf blk.1.ffn_up.weight F32
type_is $W/keep.gguf blk.2.ffn_up.weight Q8_0

$CONVERT -v $W/f32.gguf $W/v.gguf --type q8_0 > $W/stdout 2> $W/stderr
same '-v: exit status' 0 $?
same '-v: standard output' '' "$(cat $W/stdout)"
check '-v tells the error of quantising' grep -q 'blk.0.attn_q.weight.*F32.*Q8_0.*error' $W/stderr
check '-v: of a vector nothing is lost' grep -q 'output_norm.weight.*error 0$' $W/stderr

# -- what is there stays --

cp $W/f16.gguf $W/there.gguf
refused 'the output exists' 1 '--force' $DEMO $W/there.gguf
check 'it is as it was' cmp $W/f16.gguf $W/there.gguf
convert $DEMO $W/there.gguf --force
probe same $DEMO $W/there.gguf
convert $W/there.gguf $W/there.gguf --force --type f32     # onto itself
probe same $W/f32.gguf $W/there.gguf
refused 'a folder that is not there' 1 'FILE_WRITE' $DEMO $W/nowhere/a.gguf
refused 'an input that is not there' 1 'FILE_OPEN' $W/nowhere.gguf $W/a.gguf
mkdir $W/folder
refused 'a folder as output' 1 'FILE_WRITE' $DEMO $W/folder --force
absent $W/a.gguf $W/a.gguf.tmp $W/nowhere $W/folder.tmp
if have mkfifo && have timeout && mkfifo $W/pipe 2> /dev/null; then       # neither read from, nor replaced
    check 'a pipe as input' sh -c "timeout 10 $CONVERT $W/pipe $W/a.gguf; test \$? = 1"
    check 'a pipe to --check' sh -c "timeout 10 $CONVERT --check $W/pipe; test \$? = 1"
    refused 'a pipe as output' 1 'FILE_WRITE' $DEMO $W/pipe --force
    check 'it is still a pipe' test -p $W/pipe
else skip "prediff-convert and pipes: no mkfifo or timeout"; fi

# -- --dry-run --

cp $W/f16.gguf $W/dry.gguf
ls -l $W > $W.before
$CONVERT --dry-run $DEMO $W/dry.gguf --type f16 --force > $W.dry 2> $W.err
same '--dry-run: exit status' 0 $?
ls -l $W > $W.after
check '--dry-run writes nothing' cmp $W.before $W.after
$PREDIFF info -m $DEMO --tensors | sed -n 's/^ *\([a-z][a-z0-9_.]*\.\(weight\|bias\)\) .*/\1/p' | sort > $W.names
check 'names of the bundled model' test -s $W.names
for name in $(cat $W.names); do check "--dry-run tells $name" grep -q "^$name " $W.dry; done
check '--dry-run without an output' $CONVERT --dry-run $DEMO
rm -f $W.before $W.after $W.dry $W.err $W.names

# -- to a Hugging Face folder and back --

convert $DEMO $W/hf --to hf
for file in config.json model.safetensors tokenizer.json tokenizer_config.json; do check "hf: $file" test -s $W/hf/$file; done
absent $W/hf/*.tmp
convert $W/hf $W/back.gguf --type q8_0
probe same $DEMO $W/back.gguf
same 'text after the way to a folder and back' "$(write $DEMO)" "$(write $W/back.gguf)"
for key in prediff.version prediff.attention diffusion.shift_logits tokenizer.ggml.pre tokenizer.ggml.eos_token_id llama.context_length; do
    same "key $key after the way to a folder and back" "$(keys_of $DEMO | grep -e " $key ")" "$(keys_of $W/back.gguf | grep -e " $key ")"
done
has_key $W/back.gguf llama.rope.freq_base 10000         # left at its default, written out on the way
convert $W/hf $W/back32.gguf
probe same $W/f32.gguf $W/back32.gguf
convert $W/hf/model.safetensors $W/file.gguf               # one file, its config beside it
probe same $W/f32.gguf $W/file.gguf
convert $DEMO $W/hf16 --to hf --type bf16
convert $W/hf16 $W/hf16.gguf
type_is $W/hf16.gguf blk.0.attn_q.weight BF16
probe near $W/f32.gguf $W/hf16.gguf 0.004
refused 'the folder holds a model' 1 '--force' $DEMO $W/hf --to hf
refused 'a folder to a folder' 1 'GGUF' $W/hf $W/hf2 --to hf
convert $DEMO $W/hf --to hf --force
absent $W/hf2

# -- additions: away, and back from a file of their own --

convert $DEMO $W/plain.gguf --strip
check '--strip leaves no addition' sh -c "! $PREDIFF info -m $W/plain.gguf --tensors | grep -q prediff"
check 'a stripped model is causal' $PREDIFF generate -m $W/plain.gguf -p 'One day' -n 4
mask_file() {                                              # a file of safetensors with a mask vector of this width
    json="{\"prediff.mask.weight\":{\"dtype\":\"F32\",\"shape\":[$1],\"data_offsets\":[0,$((4 * $1))]}}"
    printf "\\$(printf %o ${#json})\0\0\0\0\0\0\0%s" "$json"
    head -c $((4 * $1)) /dev/zero
}
mask_file 192 > $W/mask.safetensors
mask_file 191 > $W/narrow.safetensors
convert $W/plain.gguf $W/added.gguf --add $W/mask.safetensors
has_key $W/added.gguf prediff.version 1
has_key $W/added.gguf prediff.attention hybrid
type_is $W/added.gguf prediff.mask.weight F32
check 'a model with a mask fills masks' $PREDIFF infill -m $W/added.gguf -p 'One [MASK:3] day.' --steps 3
convert $W/added.gguf $W/plain2.gguf --strip
probe same $W/plain.gguf $W/plain2.gguf
convert $DEMO $W/instead.gguf --add $W/mask.safetensors    # instead of those that are there
probe same $W/added.gguf $W/instead.gguf
refused 'additions for another width' 1 'SHAPE' $W/plain.gguf $W/a.gguf --add $W/narrow.safetensors
refused 'a model is no file of additions' 1 'no addition' $W/plain.gguf $W/a.gguf --add $W/hf/model.safetensors
absent $W/a.gguf $W/a.gguf.tmp

# -- what fails in the middle --

length=$(od -An -tu4 -N4 $W/hf/model.safetensors | tr -d ' ')
at=$(head -c $((length + 8)) $W/hf/model.safetensors | tail -c $length | sed -n 's/.*"model.layers.5.mlp.up_proj.weight":{[^}]*"data_offsets":\[\([0-9]*\),.*/\1/p')
cp -r $W/hf $W/wide
printf '\312\362\111\161' | dd of=$W/wide/model.safetensors bs=1 seek=$((length + 8 + at)) conv=notrunc 2> /dev/null   # 1e30
refused 'a value that F16 cannot hold' 1 'ENCODING' $W/wide $W/a.gguf --type f16
absent $W/a.gguf $W/a.gguf.tmp
refused 'the same onto a file' 1 'ENCODING' $W/wide $W/f16.gguf --type f16 --force
absent $W/f16.gguf.tmp
probe near $W/f32.gguf $W/f16.gguf 0.0005
convert $W/wide $W/wide.gguf --type bf16
cp -r $W/hf $W/short
head -c 100000 $W/hf/model.safetensors > $W/short/model.safetensors
refused 'a truncated file' 1 'TRUNCATED' $W/short $W/a.gguf
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n' > $W/short/model.safetensors
refused 'a Git LFS pointer' 1 'Git LFS' $W/short $W/a.gguf
refused 'a Git LFS pointer, checked' 1 'Git LFS' --check $W/short/model.safetensors
rm $W/short/model.safetensors
refused 'a folder without weights' 1 'safetensors' $W/short $W/a.gguf
absent $W/a.gguf $W/a.gguf.tmp

# -- settings that would change the arithmetic are refused by name --

# changed NAME ITEM TEXT SED...: the folder with its config edited
changed() {
    changed_name=$1 changed_item=$2 changed_text=$3 changed_sed=$4
    rm -rf $W/changed && cp -r $W/hf $W/changed
    sed "$changed_sed" $W/hf/config.json > $W/changed/config.json
    if cmp -s $W/hf/config.json $W/changed/config.json; then failed=$((failed + 1)); echo "FAIL $changed_name: the config is unchanged"; fi
    refused "$changed_name" 1 "$changed_text" $W/changed $W/a.gguf
    check "$changed_name: item" grep -q "^prediff-convert: $changed_item: " $W/stderr
    refused "$changed_name, checked" 1 "$changed_text" --check $W/changed
}
changed 'activation' UNSUPPORTED "'relu'" 's/"silu"/"relu"/'
changed 'model_type' UNSUPPORTED "'gemma'" 's/"model_type": "llama"/"model_type": "gemma"/'
changed 'rotary scaling' UNSUPPORTED "'yarn'" 's/"rms_norm_eps"/"rope_scaling": { "rope_type": "yarn", "factor": 4 }, "rms_norm_eps"/'
changed 'rotary scaling without its numbers' FIELD 'low_freq_factor' 's/"rms_norm_eps"/"rope_scaling": { "rope_type": "llama3", "factor": 4 }, "rms_norm_eps"/'
changed 'partial rotary' UNSUPPORTED 'partial_rotary_factor' 's/"rms_norm_eps"/"partial_rotary_factor": 0.5, "rms_norm_eps"/'
changed 'heads' FIELD 'heads' 's/"num_key_value_heads": 3/"num_key_value_heads": 4/'
changed 'width' SHAPE 'embed_tokens' 's/"hidden_size": 192/"hidden_size": 204/'
changed 'layers' TENSOR 'layers.6' 's/"num_hidden_layers": 6/"num_hidden_layers": 7/'
changed 'fewer layers' TENSOR 'layers.5' 's/"num_hidden_layers": 6/"num_hidden_layers": 5/'
changed 'attention of the additions' UNSUPPORTED "'diagonal'" 's/"hybrid"/"diagonal"/'
absent $W/a.gguf $W/a.gguf.tmp

# -- --check --

check_says() {
    said=$($CONVERT --check "$1" 2>&1)
    case $said in
    "$1: ok: "?*) passed=$((passed + 1)) ;;
    *) failed=$((failed + 1)); echo "FAIL --check $1: $said" ;;
    esac
}
for path in $DEMO $W/f32.gguf $W/plain.gguf $W/hf $W/hf/config.json $W/hf/model.safetensors $W/hf/tokenizer.json $W/hf/tokenizer_config.json; do
    check_says $path
done
printf 'nothing we know\n' > $W/notes.txt.md
refused 'an unknown kind' 1 'FILE_KIND' --check $W/notes.txt.md
printf '<!DOCTYPE html><html></html>' > $W/page.safetensors
refused 'a web page' 1 'web page' --check $W/page.safetensors
: > $W/empty
refused 'an empty file' 1 'empty' --check $W/empty

# -- real files --

if [ -d "$DATA/stories260k" ]; then
    S=$DATA/stories260k
    golden=$(cat $S/golden_greedy_200.txt)
    # one model, seven forms; name, tolerance, arguments
    while read -r name tolerance source more; do
        convert $S/$source $W/s-$name.gguf $more || continue
        probe logits $W/s-$name.gguf $S/reference_logits.json $tolerance
        [ $tolerance = 2e-5 ] && same "greedy text of $name" "$golden" "$($PREDIFF generate -m $W/s-$name.gguf -p '' -n 200 -t 1 2>&1)"
    done << END
bin 2e-5 stories260K.bin --tokenizer $S/tok512.bin
hf 2e-5 hf
sharded 2e-5 hf_sharded
index 2e-5 hf_sharded/model.safetensors.index.json
gguf 2e-5 stories260K-f32.gguf
hf_f16 2e-3 hf_f16
hf_bf16 2e-2 hf_bf16
gguf_f16 2e-3 stories260K-f16.gguf
gguf_bf16 2e-2 stories260K-bf16-align64.gguf
END
    for name in bin hf sharded index; do probe same $W/s-gguf.gguf $W/s-$name.gguf; done      # two rotary layouts, one file
    type_is $W/s-hf_f16.gguf blk.0.attn_q.weight F16
    type_is $W/s-hf_bf16.gguf blk.0.attn_q.weight BF16
    type_is $W/s-hf_bf16.gguf blk.0.attn_norm.weight F32
    convert $W/s-hf.gguf $W/s-q8.gguf --type q8_0
    type_is $W/s-q8.gguf blk.0.attn_q.weight Q8_0
    type_is $W/s-q8.gguf blk.0.ffn_down.weight F16         # 172 is no multiple of 32
    $CONVERT $S/hf $W/s-q8.gguf --type q8_0 --force 2> $W/stderr
    check 'rows that are no whole blocks are told' grep -q -e 'F16' $W/stderr
    probe logits $W/s-q8.gguf $S/reference_logits.json 5e-2
    for name in bin gguf; do                               # to a folder and back, from both rotary layouts
        convert $W/s-$name.gguf $W/s-$name-hf --to hf
        convert $W/s-$name-hf $W/s-$name-back.gguf
        probe same $W/s-$name.gguf $W/s-$name-back.gguf
    done
    same 'greedy text after the way back' "$golden" "$($PREDIFF generate -m $W/s-gguf-back.gguf -p '' -n 200 -t 1 2>&1)"
    refused 'a tokenizer of another model' 1 'TOKENIZER' $S/stories260K.bin $W/a.gguf --tokenizer $DEMO
    head -c 500000 $S/stories260K.bin > $W/short.bin
    refused 'a truncated llama2.c file' 1 'TRUNCATED' $W/short.bin $W/a.gguf
    cp -r $S/hf_sharded $W/sharded && rm $W/sharded/model-00002-of-00003.safetensors
    refused 'a missing shard' 1 'model-00002-of-00003.safetensors' $W/sharded $W/a.gguf
    absent $W/a.gguf $W/a.gguf.tmp
    for path in $S/stories260K.bin $S/tok512.bin $S/hf $S/hf_sharded $S/hf_sharded/model.safetensors.index.json $S/hf/tokenizer.json $S/*.gguf; do
        check_says $path
    done
else skip "prediff-convert: stories260k is not in $DATA"; fi

if [ -d "$DATA/gpt2_tiny_random" ]; then
    G=$DATA/gpt2_tiny_random
    convert $G/gpt2-tiny-random-f32.gguf $W/g-gguf.gguf
    for name in hf_bare hf_prefixed diffugpt_names; do
        convert $G/$name $W/g-$name.gguf
        probe same $W/g-gguf.gguf $W/g-$name.gguf          # Conv1D is turned, mask buffers are left out, the head is stored once
        probe logits $W/g-$name.gguf $G/reference_logits.json 2e-5
        convert $W/g-$name.gguf $W/g-$name-hf --to hf
        convert $W/g-$name-hf $W/g-$name-back.gguf
        probe same $W/g-$name.gguf $W/g-$name-back.gguf
    done
    convert $G/hf_bf16 $W/g-bf16.gguf
    probe logits $W/g-bf16.gguf $G/reference_logits.json 3e-2
    has_key $W/g-diffugpt_names.gguf diffusion.shift_logits true
    has_key $W/g-diffugpt_names.gguf prediff.attention bidirectional
    convert $G/diffugpt_names $W/g-mask.gguf --mask-token 94
    has_key $W/g-mask.gguf tokenizer.ggml.mask_token_id 94
else skip "prediff-convert: gpt2_tiny_random is not in $DATA"; fi

if [ -d "$DATA/configs" ]; then
    for path in $DATA/configs/*.json; do
        case $path in
        *kogpt2*) refused "--check $path" 1 "'gelu'" --check $path ;;
        *) check_says $path ;;
        esac
    done
else skip "prediff-convert: configs is not in $DATA"; fi

if [ -d "$DATA/corner_cases" ]; then
    while IFS="$(printf '\t')" read -r path verdict why; do
        $CONVERT --check $DATA/corner_cases/$path > /dev/null 2> $W/stderr
        status=$?
        case $verdict in ok*) want=0 ;; *) want=1 ;; esac
        same "--check $path ($verdict; $why; $(cat $W/stderr)): exit status" $want $status
    done < "$DATA/corner_cases/expected.tsv"
else skip "prediff-convert: corner_cases is not in $DATA"; fi

rm -rf $W
totals
