#!/bin/sh
# bench/synth: small checkpoints in every form; the chain and the share of right drafts.
# shellcheck disable=SC2317 # functions are called through check
. tests/cli/_lib.sh

synth=${MTPLX_SYNTH:-$(dirname -- "$MTPLX")/bench/synth/synth}
small='--preset nano --layers 4 --hidden 256 --ff 512 --vocab 2048'

make() { # make NAME OPTIONS...: the checkpoint $work/NAME
    name=$1
    shift
    # shellcheck disable=SC2086
    "$synth" $small "$@" "$work/$name" >"$work/out" 2>"$work/err"
    rc=$?
    take
}

refuses() { # refuses PART OPTIONS...
    part=$1
    shift
    "$synth" "$@" "$work/absent" >"$work/out" 2>"$work/err"
    rc=$?
    take
    [ "$rc" -ne 0 ] && has "$err" "$part" && [ ! -e "$work/absent" ] && [ ! -e "$work/absent.part" ]
}

# acceptance MODEL TOKENS: of the first draft, at depth 1.
acceptance() {
    "$MTPLX" bench --quiet --quick --rounds 1 --tokens "$2" --depths 1 --prefill 4 --context 4 \
        --csv - --prompt-tokens 2 "$work/$1" 2>"$work/err" |
        sed -n 's/^depth,1,acceptance_1,\([^,]*\),.*/\1/p'
}

share_is() { # share_is MODEL LOW HIGH [TOKENS]
    got=$(acceptance "$1" "${4:-16}")
    out="acceptance $got"
    awk "BEGIN { exit !(\"$got\" != \"\" && \"$got\" >= $2 && \"$got\" <= $3) }"
}

for type in mlx4 mlx8 bf16; do
    make "all-$type" --type "$type" --accept chain
    check "$type: every draft is right with chain" share_is "all-$type" 1 1
done
make group --type mlx4 --group 32 --untied --accept chain
check 'group 32, own head: the same' share_is group 1 1
make none --type mlx4 --accept none
check 'no draft is right with none' share_is none 0 0
make half --type mlx4 --accept 0.5
check 'about half are with 0.5' share_is half 0.35 0.65 300
check 'the share does not change the size' \
    test "$(wc -c <"$work/none/model.safetensors")" -eq "$(wc -c <"$work/half/model.safetensors")"
for type in q4_0 q4_k_m q5_k_m q6_k q8_0 f16; do
    make "$type.gguf" --type "$type" --accept chain
    check "$type: every draft is right with chain" share_is "$type.gguf" 1 1
done
make plain --no-mtp
check 'a checkpoint without an MTP head' test "$rc" -eq 0

check 'an unknown type is refused' refuses "--type 'q3'" --type q3
check 'an unknown preset is refused' refuses "--preset '70b'" --preset 70b
check 'an unknown option is refused' refuses '--frob' --frob 1
check 'a share above 1 is refused' refuses '--accept' --accept 1.5
check 'odd widths are refused' refuses 'multiples of 64' --hidden 100
check 'too many tokens for the width are refused' refuses 'cannot be told apart' --hidden 128
check 'rows that are not whole blocks are refused' refuses 'whole blocks' --hidden 320 \
    --vocab 2000 --type q4_k_m
check 'no output path is refused' test "$("$synth" 2>/dev/null; echo $?)" -eq 2

finish
