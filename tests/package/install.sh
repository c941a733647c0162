#!/bin/sh
# Installs below a temporary prefix and uses nothing but what is there: the program finds its model,
# pkg-config describes the library, a program compiles against it, uninstalling leaves no file.
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

prefix=$TMPDIR/stage/usr/local
cc=${MTPLX_CC:-cc}
version=$(sed -n 's/^.define MTPLX_VERSION "\(.*\)"/\1/p' "$MTPLX_SRC/include/mtplx.h")

# The outer make hands its settings down in MAKEFLAGS, so nothing is built twice. The tree is staged
# and used where it lies, as a package builder or a user who moves it would.
"${MAKE:-make}" -C "$MTPLX_SRC" -j1 install DESTDIR="$TMPDIR/stage" PREFIX=/usr/local \
    >"$TMPDIR/log" 2>&1
check 'make install' $?
cd "$TMPDIR" || exit 1
unset MTPLX MTPLX_HOME

[ "$("$prefix/bin/mtplx" --version | grep -c -F "$version")" -eq 1 ]
check 'the installed program tells its version' $?

"$prefix/bin/mtplx" inspect "$prefix/share/mtplx/models/nano" >"$TMPDIR/inspect"
check 'the installed model is verified by inspect' $?

"$prefix/bin/mtplx" ask 'What is a draft head?' --quiet --temperature 0 --max-tokens 24 \
    >"$TMPDIR/answer"
check 'the installed program finds its model and answers' $?
[ "$(wc -c <"$TMPDIR/answer")" -gt 20 ]
check 'the answer is not empty' $?

PKG_CONFIG_PATH=$prefix/lib/pkgconfig
export PKG_CONFIG_PATH
config() {
    pkg-config --define-variable=prefix="$prefix" "$@" mtplx
}
[ "$(config --modversion)" = "$version" ] && [ "$(config --variable=libdir)" = "$prefix/lib" ]
check 'pkg-config knows the version and the place' $?

cp "$MTPLX_SRC/examples/generate.c" .
# shellcheck disable=SC2046 # flags are split into words on purpose
"$cc" -std=c11 -Wall -Wextra -Werror generate.c $(config --cflags --libs) -o shared &&
    LD_LIBRARY_PATH=$prefix/lib ./shared "$prefix/share/mtplx/models/nano" >"$TMPDIR/shared.out"
check 'an example builds and runs against the shared library' $?

# shellcheck disable=SC2046 # flags are split into words on purpose
"$cc" -std=c11 generate.c $(config --cflags) "$prefix/lib/libmtplx.a" \
    $(config --libs --static | sed 's/-lmtplx//') -o static &&
    ./static "$prefix/share/mtplx/models/nano" >"$TMPDIR/static.out" &&
    cmp "$TMPDIR/shared.out" "$TMPDIR/static.out"
check 'and against the static one, with the same text' $?

MTPLX_HOME=$prefix/share/mtplx LD_LIBRARY_PATH=$prefix/lib ./shared >found.out &&
    cmp found.out shared.out
check 'MTPLX_HOME leads to the installed model' $?

"${MAKE:-make}" -C "$MTPLX_SRC" uninstall DESTDIR="$TMPDIR/stage" PREFIX=/usr/local \
    >>"$TMPDIR/log" 2>&1
find "$TMPDIR/stage" ! -type d >"$TMPDIR/left"
[ ! -s "$TMPDIR/left" ]
check 'make uninstall leaves no file' $?
cat "$TMPDIR/left"

# Last, in a build directory of its own: another prefix reaches the code that looks for the model.
object=$TMPDIR/other/obj/src/runtime/model.o
"${MAKE:-make}" -C "$MTPLX_SRC" BUILD="$TMPDIR/other" OPT=-O0 PREFIX=/opt/elsewhere "$object" \
    >>"$TMPDIR/log" 2>&1 && grep -q /opt/elsewhere/share/mtplx "$object"
check 'the prefix is where the library looks for its model' $?
[ "$fail" -eq 0 ] || cat "$TMPDIR/log"
exit $fail
