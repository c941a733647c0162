#!/bin/sh
# `mtplx forge quantize`: the copy loads and answers, is reproducible, and appears whole or not at
# all.
. tests/cli/_lib.sh

quantize() {
    run forge quantize "$@"
}

bf16=${MTPLX_NANO_BF16:-models/nano-bf16}

whole_model() {
    quantize "$bf16" "$work/q4"
    check 'default: exit 0' test "$rc" -eq 0
    check 'default: 4.5 bits per weight' has "$out" '4.5'
    check 'default: summary of the MTP head' has "$out" 'MTP head'
    check 'default: no leftovers' test ! -e "$work/q4.tmp" -a ! -e "$work/q4/.mtplx-forge"
    for file in config.json tokenizer.json tokenizer_config.json chat_template.jinja \
        generation_config.json model.safetensors; do
        check "default: $file" test -s "$work/q4/$file"
    done
    check 'default: the tokenizer is copied as it is' cmp -s "$bf16/tokenizer.json" \
        "$work/q4/tokenizer.json"
    check 'default: no index for one file' test ! -e "$work/q4/model.safetensors.index.json"
    run inspect "$work/q4"
    check 'the copy is verified' test "$rc" -eq 0
    check 'the copy is 4-bit' has "$out" '4-bit group 64'
    run ask --model "$work/q4" --max-tokens 8 --temperature 0 Hello.
    first=$out
    check 'the copy answers' test "$rc" -eq 0 -a -n "$out"
    run ask --model "$work/q4" --max-tokens 8 --temperature 0 --no-mtp Hello.
    check 'the copy: greedy is the same without MTP' test "$rc $out" = "0 $first"

    quantize "$bf16" "$work/again" --threads 1 --quiet
    check '--quiet prints nothing' test "$rc" -eq 0 -a -z "$out$err"
    same=0
    for file in "$work"/q4/*; do
        cmp -s "$file" "$work/again/${file##*/}" || same=1
    done
    check 'the same bytes again, also on one thread' test "$same" -eq 0
    rm -rf "$work/again"

    quantize "$bf16" "$work/q8" --bits 8 --group-size 32 --dtype f16 --json
    check '--json is valid' is_json
    check '8 bits in groups of 32' has "$out" '"bits_per_weight":9.'
    run inspect "$work/q8"
    check 'the 8-bit copy is verified' test "$rc" -eq 0
    check '--dtype f16 leaves no bf16' test "${out#*BF16}" = "$out"
    run ask --model "$bf16" --max-tokens 8 --temperature 0 Hello.
    original=$out
    run ask --model "$work/q8" --max-tokens 8 --temperature 0 Hello.
    check 'the 8-bit copy answers as the original does' test "$rc $out" = "0 $original"
    rm -rf "$work/q8"

    quantize "$bf16" "$work/mixed" --bits 3 --embed-bits 8 --mtp-bits 16 --group-size 128 \
        --shard-size 4
    check 'mixed: exit 0' test "$rc" -eq 0
    check 'mixed: an index' test -s "$work/mixed/model.safetensors.index.json"
    check 'mixed: several files' test "$(ls "$work"/mixed/model-0*.safetensors | wc -l)" -gt 2
    run inspect "$work/mixed"
    check 'mixed: verified' test "$rc" -eq 0
    check 'mixed: both widths' has "$out" '8-bit group 128 (1 matrices)'
    run ask --model "$work/mixed" --max-tokens 4 Hello.
    check 'mixed: answers' test "$rc" -eq 0
    rm -rf "$work/mixed"
}

if [ -e "$bf16/config.json" ]; then
    whole_model
else
    echo "ok a copy of a whole model # SKIP $bf16 is not here"
fi

for bits in 2 3 5 6; do
    quantize "$golden/qwen3_5_text" "$work/small" --bits $bits --group-size 64 --force
    run inspect "$work/small"
    check "$bits bits load" test "$rc" -eq 3
    check "$bits bits are stated" has "$out" "$bits-bit group 64"
done
quantize "$golden/qwen3_5_text" "$work/small" --group-size 128 --force
run inspect "$work/small"
check 'a group that does not divide is halved' has "$out" '4-bit group 64'
quantize "$golden/qwen3_5_vl_tied" "$work/vl"
run inspect "$work/vl"
check 'the VL layout keeps its names' test "$rc" -eq 3
check 'the VL layout keeps its MTP head' has "$out" 'parameters, from model.safetensors'

# Refusals: one sentence, and nothing is touched.
refused() { # refused NAME STATUS PART ARGUMENTS...
    name=$1
    status=$2
    part=$3
    shift 3
    quantize "$@"
    check "$name" fails_with "$status" "$part"
}
refused 'bits out of range' 2 '--bits takes 2, 3, 4, 5, 6 or 8' \
    "$golden/qwen3_5_text" "$work/x" --bits 7
refused 'group out of range' 2 '--group-size takes 32, 64 or 128' \
    "$golden/qwen3_5_text" "$work/x" --group-size 16
refused 'unknown dtype' 2 '--dtype takes bf16 or f16' "$golden/qwen3_5_text" "$work/x" --dtype f32
refused 'one operand' 2 'IN OUT' "$golden/qwen3_5_text"
refused 'no such input' 1 'there is no directory' "$work/none" "$work/x"
refused 'existing output' 1 'pass --force' "$golden/qwen3_5_text" "$work/small"
refused 'quantised input' 1 'quantised already' "$work/small" "$work/x"
refused 'input as output' 1 'the input directory' "$work/small" "$work/small" --force
refused 'the same through a link or dots' 1 'the input directory' "$work/small" \
    "$work/../${work##*/}/small/" --force
refused 'missing parent' 1 'x/y.tmp' "$golden/qwen3_5_text" "$work/x/y"
refused 'empty output name' 1 'cannot be the output' "$golden/qwen3_5_text" ''
mkdir "$work/home"
echo precious >"$work/home/letter"
refused '--force spares what is no model' 1 'no config.json' \
    "$golden/qwen3_5_text" "$work/home" --force
check 'its files are still there' test -s "$work/home/letter"
refused 'a file as output' 1 'not a directory' "$golden/qwen3_5_text" "$work/home/letter" --force
ln -s "$work/home" "$work/link"
refused 'a link as output' 1 'symbolic link' "$golden/qwen3_5_text" "$work/link" --force
check 'no refusal leaves anything behind' test -z "$(ls -d "$work"/*.tmp "$work"/x 2>/dev/null)"

mkdir "$work/void" "$work/q5.tmp"
quantize "$golden/qwen3_5_text" "$work/void"
check 'an empty output directory is used' test "$rc" -eq 0 -a -s "$work/void/config.json"
quantize "$golden/qwen3_5_text" "$work/q5" --bits 5
check 'an empty OUT.tmp is in nobody'\''s way' test "$rc" -eq 0
mkdir "$work/q6.tmp"
echo precious >"$work/q6.tmp/letter"
refused 'a foreign OUT.tmp is spared' 1 'in the way' "$golden/qwen3_5_text" "$work/q6"
check 'its files are still there, too' test -s "$work/q6.tmp/letter"
rm "$work/q6.tmp/letter"
: >"$work/q6.tmp/.mtplx-forge"
echo rest >"$work/q6.tmp/model.safetensors"
quantize "$golden/qwen3_5_text" "$work/q6"
check 'leftovers of a crash are cleared' test "$rc" -eq 0 -a ! -e "$work/q6.tmp"
quantize "$golden/qwen3_5_text" "$work/q6" --bits 8 --force
run inspect "$work/q6"
check '--force replaces a model' has "$out" '8-bit'
check '--force leaves no old directory' test -z "$(ls -d "$work"/q6.old* 2>/dev/null)"

cp -R "$golden/qwen3_5_text" "$work/cut"
head -c 700000 "$golden/qwen3_5_text/model.safetensors" >"$work/cut/model.safetensors"
refused 'truncated input' 1 'model.safetensors' "$work/cut" "$work/x"

# A model that takes a while: one large matrix, its header padded to 120 bytes, its bf16 values any
# ASCII text, which is finite.
header='{"model.layers.0.mlp.up_proj.weight":{"dtype":"BF16","shape":[32768,2048],'
header=$header'"data_offsets":[0,134217728]}}'
mkdir "$work/large"
{
    printf '\170\000\000\000\000\000\000\000%-120s' "$header"
    yes ';=<:><?9;' | head -c 134217728
} >"$work/large/model.safetensors"
echo '{"model_type": "qwen3_5_text"}' >"$work/large/config.json"
"$MTPLX" forge quantize "$work/large" "$work/stopped" --bits 2 \
    >"$work/out" 2>"$work/err" </dev/null &
pid=$!
tries=0
while [ ! -e "$work/stopped.tmp" ] && [ ! -e "$work/stopped" ] && [ $tries -lt 200 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
kill -s TERM "$pid"
wait "$pid"
rc=$?
take
check 'SIGTERM: exit 143' test "$rc" -eq 143
check 'SIGTERM: no output, no leftovers' test ! -e "$work/stopped" -a ! -e "$work/stopped.tmp"
finish
