#!/bin/sh
# What the libraries let out: the shared one exactly the functions of include/mtplx.h, the static
# one only names that start with mtplx_ or mx_.
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

nm -D --defined-only "$MTPLX_BUILD/libmtplx.so" | awk '$2 ~ /^[A-Z]$/ { print $3 }' | sort \
    >"$TMPDIR/exported"
sed -n 's/^MTPLX_API .*[ *]\(mtplx_[a-z0-9_]*\)(.*/\1/p' "$MTPLX_SRC/include/mtplx.h" | sort \
    >"$TMPDIR/declared"
diff "$TMPDIR/declared" "$TMPDIR/exported"
check 'the shared library exports what mtplx.h declares and nothing else' $?

[ "$(wc -l <"$TMPDIR/declared")" -ge 30 ]
check 'the declarations were found' $?

nm -g --defined-only "$MTPLX_BUILD/libmtplx.a" | awk 'NF == 3 { print $3 }' |
    grep -v -e '^mtplx_' -e '^mx_' >"$TMPDIR/foreign"
[ ! -s "$TMPDIR/foreign" ]
check 'every global name of the static library starts with mtplx_ or mx_' $?
cat "$TMPDIR/foreign"

# By section: constant tables of pointers live in .data.rel.ro, which is not writable when it runs.
nm -f sysv "$MTPLX_BUILD/libmtplx.a" |
    awk -F '|' '$7 ~ /^ *[.](data|bss|tdata|tbss) *$/ { print $1 }' | sort -u >"$TMPDIR/mutable"
[ ! -s "$TMPDIR/mutable" ]
check 'the library has no mutable global or static state' $?
cat "$TMPDIR/mutable"
exit $fail
