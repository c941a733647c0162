#!/bin/sh
# The example program: answers with the model that ships with mtplx and with a named one, gives the
# same greedy text each time, and fails with one sentence on a model that is not there.
set -u

fail=0
check() { # check NAME STATUS
    if [ "$2" -eq 0 ]; then
        echo "ok - $1"
    else
        echo "not ok - $1"
        fail=1
    fi
}

generate=$MTPLX_BUILD/examples/generate
case $MTPLX_BUILD in
"$MTPLX_SRC"/*) unset MTPLX_HOME ;;
*) export MTPLX_HOME="$MTPLX_SRC" ;; # a build elsewhere is not beside the models
esac
model=$MTPLX_SRC/models/nano

"$generate" "$model" >"$TMPDIR/first"
check 'it answers with a named model' $?
[ "$(wc -c <"$TMPDIR/first")" -gt 20 ]
check 'the answer is not empty' $?
"$generate" >"$TMPDIR/second" && cmp "$TMPDIR/first" "$TMPDIR/second"
check 'the shipped model is found and gives the same text' $?

"$generate" "$TMPDIR/nowhere" >"$TMPDIR/out" 2>"$TMPDIR/err"
[ $? -eq 1 ] && [ "$(wc -l <"$TMPDIR/err")" -eq 1 ] && grep -q nowhere "$TMPDIR/err"
check 'a missing model is one sentence that names it' $?

[ "$(wc -l <"$MTPLX_SRC/examples/generate.c")" -lt 60 ]
check 'it stays under 60 lines' $?
exit $fail
