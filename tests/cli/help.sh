#!/bin/sh
# Help, version, unknown commands and flags: what a new user meets first.
. tests/cli/_lib.sh

run
check 'no arguments: short help on stdout, exit 0' succeeds 'Usage: mtplx COMMAND'
run --version
check '--version prints name and version' test "$rc $out" = '0 mtplx 0.1.0'
run --vers
check '--version may be abbreviated' succeeds 'mtplx 0.1.0'
run --help
check '--help is the overview' succeeds 'Commands:'
run help
check 'help is the overview' succeeds 'Commands:'

for command in ask serve stop inspect bench 'forge quantize' 'cache check' 'cache ls' 'cache gc' \
    'cache clear'; do
    # shellcheck disable=SC2086 # two-word commands
    run help $command
    by_topic=$out
    check "help $command" succeeds "Usage: mtplx $command"
    usage=$(printf '%s\n' "$out" | head -n 1)
    check "help $command: operands or none" test "${usage%[ )]}" = "$usage"
    # shellcheck disable=SC2086
    run $command --help
    check "$command --help is the same text" test "$rc $out" = "0 $by_topic"
done
run ask -h
check 'ask -h' succeeds 'Usage: mtplx ask'
run help forge
check 'help forge lists its commands' succeeds 'forge quantize'
run forge --help
check 'forge --help lists its commands' succeeds 'forge quantize'
run help flags
check 'help flags lists the flags of all commands' succeeds '--group-size'
run help environment
check 'help environment lists variables' succeeds 'MTPLX_DEPTH'
run help commands
check 'help commands' succeeds 'inspect'
run run --help
check 'run is another name of ask' succeeds 'Usage: mtplx ask'

"$MTPLX" help ask >"$work/a"
check 'every flag of ask is in its help' grep -q -e '--repetition-penalty' "$work/a"
check 'help names the environment variable' grep -q 'MTPLX_TEMPERATURE' "$work/a"
wide=0
for topic in '' ask serve stop inspect bench 'forge quantize' forge flags environment commands; do
    # shellcheck disable=SC2086
    "$MTPLX" help $topic | awk 'length($0) > 79 { bad = 1 } END { exit bad }' || wide=1
done
check 'no help line is wider than 79 columns' test "$wide" -eq 0

run aks hello
check 'a mistyped command gets a suggestion' fails_with 2 "did you mean 'ask'"
run frobnicate
check 'an unknown command exits 2' fails_with 2 "unknown command 'frobnicate'"
run cache frobnicate
check 'an unknown command of a group is named' fails_with 2 "'cache' has no command 'frobnicate'"
run help aks
check 'a mistyped help topic gets a suggestion' fails_with 2 "did you mean 'ask'"
run forge
check 'forge alone exits 2' fails_with 2 'forge'
run forge quantise a b
check 'forge quantise is corrected' fails_with 2 "did you mean 'forge quantize'"
run --frob
check 'an unknown flag before the command exits 2' fails_with 2 'unknown flag --frob'
run ''
check 'an empty command exits 2' fails_with 2 'unknown command'

run --no-color --version
check '--no-color before the command' succeeds 'mtplx 0.1.0'
run inspect
check 'a missing operand exits 2 and is named' fails_with 2 'MODEL'
run inspect a b
check 'too many operands exit 2' fails_with 2 'MODEL'

if [ -w /dev/full ]; then
    "$MTPLX" help >/dev/full 2>"$work/err"
    rc=$?
    out=
    err=$(cat "$work/err")
    check 'help on a full disk exits 1 and says so' fails_with 1 'cannot write to standard output'
fi
"$MTPLX" --version >&- 2>"$work/err"
rc=$?
check 'a closed standard output exits 1' test "$rc" -eq 1
finish
