#!/bin/sh
# Incremental builds: nothing is rebuilt without a reason; a changed flag or header is one.
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

# A copy with one library file is enough, and leaves the real build alone.
unset MAKEFLAGS MAKEOVERRIDES MFLAGS MAKELEVEL BUILD CC CFLAGS LDFLAGS OPT SANITIZE WERROR V
tree=$TMPDIR/tree
mkdir -p "$tree/include" "$tree/src/base" "$tree/src/cli" "$tree/tests" "$tree/bench" \
    "$tree/examples"
cp "$MTPLX_SRC/Makefile" "$tree/"
cp "$MTPLX_SRC/include/mtplx.h" "$tree/include/"
cp "$MTPLX_SRC/examples/generate.c" "$tree/src/cli/main.c"
echo 'int mx_one(void);' >"$tree/src/base/one.h"
printf '#include "base/one.h"\nint mx_one(void)\n{\n    return 1;\n}\n' >"$tree/src/base/one.c"
cp "$tree/src/base/one.c" "$tree/src/base/two.c"
sed -i.bak 's/mx_one/mx_two/' "$tree/src/base/two.c"
echo 'int mx_two(void);' >>"$tree/src/base/one.h"

build() { # build [SETTING...]: prints how many files were compiled
    make -C "$tree" build/libmtplx.a "$@" 2>&1 | tee -a "$TMPDIR/log" | grep -c '^ *CC '
}

[ "$(build)" -eq 2 ]
check 'the first build compiles every file' $?
[ "$(build)" -eq 0 ]
check 'the second build compiles nothing' $?
[ "$(build CFLAGS=-DSOMETHING)" -eq 2 ]
check 'a changed flag compiles every file' $?
[ "$(build CFLAGS=-DSOMETHING)" -eq 0 ]
check 'the same flag again compiles nothing' $?
[ "$(build)" -eq 2 ]
check 'a flag taken back compiles every file' $?
sleep 1
touch "$tree/src/base/one.h"
[ "$(build)" -eq 2 ]
check 'a touched header compiles its users' $?
rm "$tree/src/base/two.c"
build >/dev/null
[ "$(ar t "$tree/build/libmtplx.a" | tr '\n' ' ')" = 'one.o ' ]
check 'a removed file leaves the archive' $?
[ "$fail" -eq 0 ] || cat "$TMPDIR/log"
exit $fail
