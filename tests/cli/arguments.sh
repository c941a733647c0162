#!/bin/sh
# Flags and environment of `mtplx ask`: every mistake is one sentence and exit 2, before any model
# is loaded.
. tests/cli/_lib.sh

usage() { # usage NAME PART ARGUMENTS...
    name=$1
    part=$2
    shift 2
    run ask --model "$work/none" "$@"
    check "$name" fails_with 2 "$part"
}

usage 'typo of a flag' 'did you mean --temperature?' --temprature 1 hi
usage 'unknown flag' 'unknown flag --frobnicate' --frobnicate hi
usage 'ambiguous abbreviation lists the candidates' '--temperature, --top-p, --top-k' --t 1 hi
usage 'depth above 8' '--depth takes auto, 0' --depth 9 hi
usage 'depth below 0' '--depth takes auto, 0' --depth -1 hi
usage 'depth of text' '--depth takes auto, 0' --depth three hi
usage 'depth with a fraction' '--depth takes auto, 0' --depth 2.5 hi
usage 'unknown depth policy' '--depth-policy takes none, auto' --depth-policy fast hi
usage 'context copy of text' '--context-copy takes on or off' --context-copy maybe hi
usage 'max-tokens 0' '--max-tokens takes an integer from 1' --max-tokens 0 hi
usage 'max-tokens beyond 64 bits' '--max-tokens takes' --max-tokens 99999999999999999999 hi
usage 'temperature nan' '--temperature takes a number' --temperature nan hi
usage 'temperature inf' '--temperature takes a number' --temperature inf hi
usage 'temperature below 0' '--temperature takes a number from 0' --temperature -0.5 hi
usage 'top-p 0' '--top-p takes a number above 0' --top-p 0 hi
usage 'top-p above 1' '--top-p takes a number above 0' --top-p 1.01 hi
usage 'top-k below 0' '--top-k takes an integer from 0' --top-k -1 hi
usage 'min-p above 1' '--min-p takes a number from 0 to 1' --min-p 2 hi
usage 'presence penalty out of range' '--presence-penalty takes' --presence-penalty 3 hi
usage 'frequency penalty out of range' '--frequency-penalty takes' --frequency-penalty -3 hi
usage 'repetition penalty 0' '--repetition-penalty takes' --repetition-penalty 0 hi
usage 'seed below 0' '--seed takes an integer' --seed -1 hi
usage 'unknown device' '--device takes auto, cpu or ref' --device tpu hi
usage 'decimal comma' '--temperature takes a number' --temperature 0,5 hi
usage 'value missing at the end' '--depth needs a value' hi --depth
usage 'value missing before a flag' '--system needs a value' --system --json hi
usage 'switch with a bad word' '--json takes on or off' --json=perhaps hi
usage 'empty model' '--model needs a value' --model= hi
usage 'draft-vocab 0' '--draft-vocab takes full or an integer from 1 to' --draft-vocab 0 hi
usage 'draft-vocab below 0' '--draft-vocab takes full or' --draft-vocab=-1 hi
usage 'draft-vocab of text' '--draft-vocab takes full or' --draft-vocab most hi
usage 'draft-vocab with a fraction' '--draft-vocab takes full or' --draft-vocab 1.5 hi
usage 'draft-vocab with a blank' '--draft-vocab takes full or' '--draft-vocab= 5' hi
usage 'draft-vocab too large' '--draft-vocab takes full or' --draft-vocab 16777217 hi
usage 'draft-vocab beyond 64 bits' '--draft-vocab takes' --draft-vocab 99999999999999999999 hi
usage 'empty draft-vocab' '--draft-vocab needs a value' --draft-vocab= hi
usage 'draft-requant of text' '--draft-requant takes keep, q4 or q8' --draft-requant q5 hi
usage 'kv-quant of another width' '--kv-quant takes off, q8, q6 or q4' --kv-quant q5 hi
usage 'kv-quant of text' '--kv-quant takes off' --kv-quant most hi
usage 'kv-quant with a tail' '--kv-quant takes off' --kv-quant q8_1 hi
usage 'kv-quant by its long name' '--paged-kv-quantization takes off' --paged-kv-quant q3 hi
usage 'kv-quant twice' '--kv-quant q8 and --paged-kv-quantization q4 are one setting' \
    --kv-quant q8 --paged-kv-quantization q4 hi
run ask --model "$work/none" --kv-quant q8 --paged-kv-quantization q8 hi
check 'kv-quant twice the same' fails_with 1 'there is no directory'
usage 'merge without an adapter' 'needs --mtp-adapter' --merge-mtp-adapter hi

MTPLX_DEPTH=9
export MTPLX_DEPTH
usage 'bad environment value names the variable' 'MTPLX_DEPTH takes auto, 0' hi
run ask --model "$work/none" --depth 2 hi
check 'a flag beats a bad variable' fails_with 1 'there is no directory'
MTPLX_DEPTH=
usage 'an empty variable counts as unset' 'no prompt'
unset MTPLX_DEPTH
MTPLX_DRAFT_VOCAB=half
export MTPLX_DRAFT_VOCAB
usage 'bad draft vocabulary names the variable' 'MTPLX_DRAFT_VOCAB takes full or' hi
unset MTPLX_DRAFT_VOCAB
MTPLX_MTP=perhaps
export MTPLX_MTP
usage 'bad boolean word in the environment' 'MTPLX_MTP takes on or off' hi
unset MTPLX_MTP
MTPLX_PAGED_KV_QUANT=q7
export MTPLX_PAGED_KV_QUANT
usage 'kv-quant in the environment' 'MTPLX_PAGED_KV_QUANT takes off, q8, q6 or q4' hi
unset MTPLX_PAGED_KV_QUANT

MTPLX_MODEL=$work/from-environment
export MTPLX_MODEL
run ask hi
check 'MTPLX_MODEL names the model' fails_with 1 'from-environment'
run ask --model "$work/from-flag" hi
check '--model beats MTPLX_MODEL' fails_with 1 'from-flag'
unset MTPLX_MODEL

usage 'no prompt at all' 'no prompt'
usage 'empty prompt' 'the prompt is empty' ''
usage 'blank prompt' 'the prompt is empty' '  '
run ask --model "$work/none" -x
check 'a dash word gets the hint about --' fails_with 2 'put -- before'
printf 'bad \377 text' >"$work/bad"
run_with "$work/bad" ask --model "$work/none"
check 'standard input that is not UTF-8' fails_with 1 'not valid UTF-8'
printf 'a\000b' >"$work/nul"
run_with "$work/nul" ask --model "$work/none"
check 'standard input with a NUL byte' fails_with 1 'NUL byte'
run ask --model "$work/none" "$(printf 'bad \377')"
check 'a prompt that is not UTF-8' fails_with 1 'not valid UTF-8'
: >"$work/empty"
run_with "$work/empty" ask --model "$work/none"
check 'empty standard input' fails_with 2 'the prompt is empty'
head -c 17000000 /dev/zero | tr '\000' 'a' >"$work/huge"
run_with "$work/huge" ask --model "$work/none"
check 'standard input over 16 MiB' fails_with 1 'more than 16 MiB'
rm -f "$work/huge"

run ask --model "$work/none" hi
check 'missing model directory' fails_with 1 'there is no directory'
run ask --model "$nano/config.json" hi
check 'a file as the model' fails_with 1 'is a file; give the directory'
mkdir "$work/dir"
run ask --model "$work/dir" hi
check 'a directory that is no model' fails_with 1 'has no config.json'
echo '{' >"$work/dir/config.json"
run ask --model "$work/dir" hi
check 'a broken config.json' fails_with 1 'config.json'
echo '{"model_type": "llama"}' >"$work/dir/config.json"
run ask --model "$work/dir" hi
check 'an unsupported model type' fails_with 1 'llama'
finish
