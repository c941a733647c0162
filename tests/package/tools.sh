#!/bin/sh
# The scripts themselves: run-tests counts and fails as it says, style finds what it bans, bootstrap
# asks the right package manager in the right way and leaves a complete machine alone.
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

unset MTPLX_TOTALS MTPLX_RUNNER
tree=$TMPDIR/tree
mkdir -p "$tree/tests" "$tree/bench" "$tree/examples" "$tree/include" "$tree/.ci"
cp -r "$MTPLX_SRC/scripts" "$tree/"

# ---- run-tests -----------------------------------------------------------------------------------

program() { # program NAME: a shell test from standard input
    cat >"$tree/tests/$1.sh"
}

runs() { # runs NAME...: output in $TMPDIR/out, the last line in $last
    for t in "$@"; do
        printf 'tests/%s.sh\n' "$t"
    done >"$TMPDIR/names"
    # shellcheck disable=SC2046 # one name a word
    "$tree/scripts/run-tests" --jobs 2 $(cat "$TMPDIR/names") >"$TMPDIR/out" 2>&1
    status=$?
    last=$(tail -n 1 "$TMPDIR/out")
}

program plain <<'END'
echo fine
END
program plain_fails <<'END'
echo "words that help"; exit 3
END
program tap <<'END'
echo "ok 1 - a"; echo "not ok 2 - b"; echo "ok 3 - c # SKIP no reason"; exit 1
END
program cmocka <<'END'
printf '[ RUN      ] %s\n' a b c d
printf '[       OK ] %s\n' a b
printf '[  SKIPPED ] c\n[  FAILED  ] d\n[  SKIPPED ] 1 test(s), listed below:\n[  SKIPPED ] c\n'
exit 1
END
program liar <<'END'
echo "ok 1 - a"; exit 1
END

runs plain
[ $status -eq 0 ] && [ "$last" = '1 passed, 0 failed' ]
check 'run-tests: a script without cases is one case' $?
runs plain plain_fails
[ $status -ne 0 ] && [ "$last" = '1 passed, 1 failed' ] && grep -q 'words that help' "$TMPDIR/out"
check 'run-tests: a failure shows its output' $?
runs tap
[ $status -ne 0 ] && [ "$last" = '1 passed, 1 failed, 1 skipped' ]
check 'run-tests: TAP lines' $?
runs cmocka
[ $status -ne 0 ] && [ "$last" = '2 passed, 1 failed, 1 skipped' ]
check 'run-tests: cmocka lines' $?
runs liar
[ $status -ne 0 ] && [ "$last" = '1 passed, 1 failed' ]
check 'run-tests: a bad exit status is a failure whatever was printed' $?
runs
[ $status -ne 0 ]
check 'run-tests: no program at all is a failure' $?
last=$("$tree/scripts/run-tests" --match 'pl*' --skip 'a.sh plain_fails.sh' tests/plain.sh \
    tests/plain_fails.sh tests/tap.sh | tail -n 1)
[ "$last" = '1 passed, 0 failed' ]
check 'run-tests: programs are chosen by pattern and by name' $?

# ---- style ---------------------------------------------------------------------------------------

style_finds() { # style_finds FILE PATTERN: a file from standard input breaks a rule
    mkdir -p "$(dirname -- "$tree/$1")"
    cat >"$tree/$1"
    (cd "$tree" && scripts/style) >"$TMPDIR/out" 2>&1
    status=$?
    rm "$tree/$1"
    [ $status -ne 0 ] && grep -q "^$1:.*$2" "$TMPDIR/out"
    check "style: $2" $?
}

rm -rf "${tree:?}/tests"
mkdir "$tree/tests" "$tree/src"
(cd "$tree" && scripts/style)
check 'style: a clean tree passes' $?
style_finds src/base/a.c 'stands above it' <<'END'
/* x */
#include "runtime/sampler.h"
END
style_finds src/families/a.c 'device backend' <<'END'
/* x */
#include "device/cpu/cpu.h"
END
style_finds src/base/a.c 'folder of src' <<'END'
/* x */
#include "error.h"
END
style_finds src/base/a.c 'atoi() is banned' <<'END'
/* x */
/* atoi(" */ int x = atoi("1");
END
style_finds src/base/a.c 'banner' <<'END'
int x;
END
printf '/* x */\n\tint x;\n' | style_finds src/base/a.c tab
printf '/* x */ \n' | style_finds src/base/a.c 'trailing blanks'
printf '/* %0100d */\n' 0 | style_finds src/base/a.c 'wider than 100'
awk 'BEGIN { print "/* x */"; for (i = 0; i < 1500; i++) print "" }' |
    style_finds src/base/a.c '1,500 lines'

# ---- bootstrap -----------------------------------------------------------------------------------

scripts=$MTPLX_SRC/scripts
bare=$TMPDIR/bare
mkdir "$bare"
for tool in sh uname grep dirname env cat; do
    ln -s "$(command -v $tool)" "$bare/$tool"
done
printf '#!/bin/sh\necho 1000\n' >"$bare/id"
chmod +x "$bare/id"

boot() { # boot [ARGUMENT...] on a machine that has nothing but $bare
    PATH=$bare sh "$scripts/bootstrap" "$@" >"$TMPDIR/out" 2>&1
}

stub() { # stub NAME: a command that notes how it was called
    printf '#!/bin/sh\necho "%s $*" >>"%s/calls"\n' "$1" "$TMPDIR" >"$bare/$1"
    chmod +x "$bare/$1"
}

boot --check build
[ $? -eq 1 ] && grep -q 'missing.*make, pkg-config, jansson' "$TMPDIR/out"
check 'bootstrap --check: lists what is missing' $?
boot build
[ $? -eq 1 ] && grep -q 'no apt-get, dnf or brew' "$TMPDIR/out"
check 'bootstrap: says so when there is no package manager' $?
stub dnf
boot build
[ $? -eq 1 ] && grep -q 'needs root' "$TMPDIR/out" && [ ! -e "$TMPDIR/calls" ]
check 'bootstrap: without root and sudo it stops with the list' $?
stub sudo
boot build
[ $? -eq 1 ] && grep -q '^sudo dnf install .*jansson-devel pcre2-devel' "$TMPDIR/calls" &&
    grep -q 'still missing' "$TMPDIR/out"
check 'bootstrap: goes through sudo and checks the result' $?
boot --nonsense
[ $? -eq 2 ]
check 'bootstrap: refuses an unknown argument' $?

if "$scripts/bootstrap" --check build >/dev/null; then
    rm -f "$TMPDIR/calls" "$bare/dnf"
    stub apt-get
    PATH=$bare:$PATH "$scripts/bootstrap" build >"$TMPDIR/out" 2>&1 &&
        [ ! -e "$TMPDIR/calls" ] && [ ! -s "$TMPDIR/out" ]
    check 'bootstrap: does nothing on a complete machine' $?
else
    echo 'ok - bootstrap: does nothing on a complete machine # SKIP something is missing here'
fi
exit $fail
