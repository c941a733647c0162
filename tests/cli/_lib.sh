#!/bin/sh
# Shared by the CLI tests: running the program and reporting cases.
#
# A case is one `ok NAME` or `not ok NAME` line. `run` leaves standard output in $out, standard
# error in $err and the exit status in $rc.

MTPLX=${MTPLX:-build/mtplx}
case $MTPLX in
/*) ;;
*) MTPLX=$PWD/$MTPLX ;;
esac
work=$(mktemp -d "${TMPDIR:-/tmp}/mtplx-cli.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

# The tests decide about every setting themselves.
for name in $(env | sed -n 's/^\(MTPLX_[A-Z_]*\)=.*/\1/p'); do
    case $name in
    MTPLX_SRC | MTPLX_BUILD | MTPLX_RUNNER | MTPLX_HOME | MTPLX_NANO_BF16) ;;
    *) unset "$name" ;;
    esac
done
unset NO_COLOR
export MTPLX_STATE_DIR=off
export MTPLX_SSD_SESSION_CACHE=off

nano=models/nano
golden=tests/golden

run() {
    "$MTPLX" "$@" >"$work/out" 2>"$work/err" </dev/null
    rc=$?
    take
}

# The same with standard input from a file.
run_with() {
    input=$1
    shift
    "$MTPLX" "$@" >"$work/out" 2>"$work/err" <"$input"
    rc=$?
    take
}

take() {
    out=$(cat "$work/out")
    err=$(cat "$work/err")
}

ok() {
    echo "ok $1"
}

not_ok() {
    echo "not ok $1"
    shift
    for line in "$@"; do
        printf '%s\n' "$line" | sed 's/^/  # /'
    done
    failures=$((failures + 1))
}

# check NAME COMMAND...: the case holds when the command succeeds.
check() {
    name=$1
    shift
    if "$@"; then
        ok "$name"
    else
        not_ok "$name" "failed: $*" "exit status $rc" \
            "stdout: $(printf '%s' "$out" | head -c 600)" \
            "stderr: $(printf '%s' "$err" | head -c 600)"
    fi
}

# has TEXT PART: PART occurs in TEXT.
has() {
    case $1 in
    *"$2"*) return 0 ;;
    esac
    return 1
}

# fails_with STATUS PART: the last run failed so, with one sentence on standard error that has PART,
# and nothing on standard output.
fails_with() {
    [ "$rc" -eq "$1" ] && has "$err" "$2" && [ -z "$out" ] && [ "$(wc -l <"$work/err")" -eq 1 ]
}

# succeeds PART: status 0 and PART on standard output.
succeeds() {
    [ "$rc" -eq 0 ] && has "$out" "$1"
}

# One JSON value and nothing else on standard output: a tokenizer and a stack, no numbers checked
# beyond their characters.
is_json() {
    awk '
        { text = text $0 "\n" }
        function next_token(    c) {
            sub(/^[ \t\r\n]+/, "", text)
            c = substr(text, 1, 1)
            if (c == "") return "end"
            if (index("{}[],:", c)) { text = substr(text, 2); return c }
            if (match(text, /^"([^"\\]|\\["\\\/bfnrtu])*"/)) {
                text = substr(text, RLENGTH + 1)
                return "string"
            }
            if (match(text, /^(true|false|null|-?[0-9][0-9.eE+-]*)/)) {
                text = substr(text, RLENGTH + 1)
                return "value"
            }
            return "bad"
        }
        function value(t) {
            if (t == "string" || t == "value") return 1
            if (t == "[") {
                t = next_token()
                if (t == "]") return 1
                while (value(t)) {
                    t = next_token()
                    if (t == "]") return 1
                    if (t != ",") return 0
                    t = next_token()
                }
                return 0
            }
            if (t != "{") return 0
            t = next_token()
            if (t == "}") return 1
            while (t == "string" && next_token() == ":" && value(next_token())) {
                t = next_token()
                if (t == "}") return 1
                if (t != ",") return 0
                t = next_token()
            }
            return 0
        }
        END { exit !(value(next_token()) && next_token() == "end") }
    ' "$work/out"
}

finish() {
    [ "$failures" -eq 0 ]
    exit
}
