#!/bin/sh
# `mtplx inspect`: reports and exit codes for good, partial, foreign and damaged checkpoints.
. tests/cli/_lib.sh

verdict() { # verdict NAME STATUS PART DIRECTORY
    run inspect "$4"
    check "$1: exit $2" test "$rc" -eq "$2"
    check "$1: says $3" has "$out" "$3"
}

verdict 'nano' 0 'verified' "$nano"
for part in 'qwen3_5' '2 attention, 6 recurrent' '31.9 million parameters' 'BF16' 'MTP head' \
    'raw, MTP raw' '8192 tokens' 'chat template' '3.0 KiB a token, q8 1.6 KiB'; do
    check "nano: shows $part" has "$out" "$part"
done
check 'nano: nothing on standard error' test -z "$err"
verdict 'no tokenizer' 3 'unverified' "$golden/qwen3_5_text"
verdict 'VL layout' 3 'model_type qwen3_5,' "$golden/qwen3_5_vl"
verdict 'mixed MLX quantisation' 3 '8-bit group 64 (2 matrices)' "$golden/qwen3_5_text_mlx_mixed"
check 'mixed MLX quantisation: baked norms' has "$out" 'baked, MTP baked'
verdict 'no MTP head' 2 'no MTP' "$golden/qwen3_5_text_mlx4"

mkdir "$work/foreign"
echo '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2}' \
    >"$work/foreign/config.json"
verdict 'foreign architecture, no weights' 4 'llama' "$work/foreign"
cp "$golden/qwen3_5_text_mlx4/model.safetensors" "$work/foreign"
verdict 'foreign architecture with weights' 4 'U32' "$work/foreign"
echo '{}' >"$work/foreign/config.json"
verdict 'no model type' 4 'unsupported' "$work/foreign"

# GGUF: the fuzzing seeds are small files with other architectures or tensors missing.
gguf=tests/fuzz/corpus/gguf
mkdir "$work/gguf"
cp "$gguf/foreign" "$work/gguf/foreign.gguf"
verdict 'GGUF of a foreign architecture' 4 "model type 'llama'" "$work/gguf/foreign.gguf"
check 'GGUF of a foreign architecture: block type' has "$out" 'GGUF Q4_K (1 matrices)'
verdict 'a directory with one GGUF file' 4 "model type 'llama'" "$work/gguf"
cp "$gguf/qwen35" "$work/gguf/partial.gguf"
run inspect "$work/gguf/partial.gguf"
check 'GGUF without most tensors' fails_with 1 'partial.gguf: no tensor stands for'
run inspect "$work/gguf"
check 'a directory with two GGUF files' fails_with 1 'holds 2 GGUF files; name one'
head -c 900 "$gguf/qwen35" >"$work/gguf/short.gguf"
run inspect "$work/gguf/short.gguf"
check 'truncated GGUF file' fails_with 1 'short.gguf'
run forge quantize "$work/gguf/partial.gguf" "$work/gguf/out"
check 'quantising a GGUF file' fails_with 1 'is a GGUF model'

# Damage, always one sentence and exit 1.
damaged() { # damaged NAME PART
    run inspect "$work/broken"
    check "$1" fails_with 1 "$2"
    rm -rf "$work/broken"
    cp -R "$golden/qwen3_5_text" "$work/broken"
}
cp -R "$golden/qwen3_5_text" "$work/broken"
rm "$work/broken"/*.safetensors
damaged 'no weight file' 'safetensors'
head -c 700000 "$golden/qwen3_5_text/model.safetensors" >"$work/broken/model.safetensors"
damaged 'truncated weight file' 'model.safetensors'
: >"$work/broken/model.safetensors"
damaged 'empty weight file' 'model.safetensors'
head -c 100000 /dev/zero >"$work/broken/model.safetensors"
damaged 'weight file of zeros' 'model.safetensors'
echo 'not json' >"$work/broken/config.json"
damaged 'config.json that is not JSON' 'config.json'
: >"$work/broken/config.json"
damaged 'empty config.json' 'config.json'
sed 's/"hidden_size": 64/"hidden_size": 128/' "$golden/qwen3_5_text/config.json" \
    >"$work/broken/config.json"
damaged 'config.json of another model' 'shape'
sed 's/"num_hidden_layers": 8/"num_hidden_layers": "eight"/' "$golden/qwen3_5_text/config.json" \
    >"$work/broken/config.json"
damaged 'a number that is none' 'num_hidden_layers'

printf '{' >"$work/broken/generation_config.json"
damaged 'a broken generation_config.json' 'generation_config.json'
ln -s loop "$work/broken/chat_template.jinja"
damaged 'a chat template that cannot be read' 'chat_template.jinja'
echo '[1]' >"$work/broken/tokenizer.json"
damaged 'a broken tokenizer' 'tokenizer.json'

run inspect "$work/nowhere"
check 'no such directory' fails_with 1 'there is no directory'
run inspect "$nano/config.json"
check 'a file instead of a directory' fails_with 1 'is a file'
mkdir "$work/empty"
run inspect "$work/empty"
check 'a directory without config.json' fails_with 1 'has no config.json'

run inspect --json "$nano"
check '--json is valid' is_json
check '--json: exit 0' test "$rc" -eq 0
for key in '"verdict": "verified"' '"exit_code": 0' '"architecture": "qwen3_5"' '"layers": 8' \
    '"norm_encoding": "raw"' '"tokenizer": true'; do
    check "--json has $key" has "$out" "$key"
done
run inspect --json "$work/foreign"
check '--json of an unsupported model is valid' is_json
check '--json of an unsupported model: exit 4' test "$rc" -eq 4
if [ -w /dev/full ]; then
    "$MTPLX" inspect "$nano" >/dev/full 2>"$work/err"
    rc=$?
    out=
    err=$(cat "$work/err")
    check 'a full disk is reported' fails_with 1 'cannot write to standard output'
fi
finish
