#!/bin/sh
# The official openai and @anthropic-ai/sdk clients against `mtplx serve` with the shipped model.
#
#   tests/api/run.sh [SUITE...]     only these, e.g. chat.test.mjs; default: all
#
# Installs the locked packages into tests/api/node_modules (not in the repository) when they are not
# there, starts a server on a free port, runs every suite against it and stops it; its exit status
# counts as a case. Skips when the packages are absent and the registry cannot be reached, unless
# MTPLX_API_REQUIRED is set. MTPLX_SCHEMAS: random schemas of schemas.test.mjs, default 40.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
MTPLX_SRC=${MTPLX_SRC:-$(CDPATH='' cd -- "$here/../.." && pwd)}
mtplx=${MTPLX:-${MTPLX_BUILD:-$MTPLX_SRC/build}/mtplx}
work=$(mktemp -d "${TMPDIR:-/tmp}/mtplx-api.XXXXXX") || exit 1
server=
trap 'stop_server KILL; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

stop_server() {
    [ -z "$server" ] || kill -"$1" "$server" 2>/dev/null
}

fail() {
    echo "not ok - $1"
    exit 1
}

# ---- Packages ------------------------------------------------------------------------------------

for tool in node npm; do
    command -v "$tool" >/dev/null || fail "$tool is missing: scripts/bootstrap test installs it"
done

packages_current() {
    cmp -s "$here/package-lock.json" "$here/node_modules/.installed-from"
}

if ! packages_current; then
    # One retry, soon: a registry that is out of reach is to be told within a quarter of a minute.
    npm_config_fetch_retries=1
    npm_config_fetch_retry_mintimeout=2000
    npm_config_fetch_retry_maxtimeout=5000
    export npm_config_fetch_retries npm_config_fetch_retry_mintimeout
    export npm_config_fetch_retry_maxtimeout
    if npm ci --prefix "$here" --no-audit --no-fund --ignore-scripts >"$work/npm" 2>&1; then
        cp "$here/package-lock.json" "$here/node_modules/.installed-from"
    elif [ -z "${MTPLX_API_REQUIRED:-}" ] && [ ! -d "$here/node_modules/openai" ] &&
        ! npm ping >/dev/null 2>&1; then
        echo 'ok - official clients # SKIP node_modules is absent and npm cannot reach its registry'
        exit 0
    else
        cat "$work/npm"
        fail 'npm ci of tests/api'
    fi
fi

# ---- Server --------------------------------------------------------------------------------------

MTPLX_API_KEY=api-suite-key
MTPLX_SSD_SESSION_CACHE=off
export MTPLX_API_KEY MTPLX_SSD_SESSION_CACHE
"$mtplx" serve --model "$MTPLX_SRC/models/nano" --port 0 >"$work/out" 2>"$work/err" &
server=$!

url_of() {
    sed -n 's|^mtplx ready: \(http://[0-9.]*:[0-9]*\).*|\1|p' "$work/out"
}

tries=0
until [ -n "$(url_of)" ]; do
    tries=$((tries + 1))
    if [ "$tries" -gt 300 ] || ! kill -0 "$server" 2>/dev/null; then
        cat "$work/out" "$work/err"
        fail 'mtplx serve printed no address'
    fi
    sleep 0.2
done
MTPLX_API_URL=$(url_of)
export MTPLX_API_URL

# ---- Suites --------------------------------------------------------------------------------------

[ $# -gt 0 ] || set -- "$here"/*.test.mjs
status=0
for suite in "$@"; do
    echo "# ${suite##*/}"
    node --test-reporter=tap "$here/${suite##*/}" || status=1
    kill -0 "$server" 2>/dev/null || break
done

# ---- The end -------------------------------------------------------------------------------------

if kill -0 "$server" 2>/dev/null; then
    node "$here/shutdown.mjs" >"$work/stream" 2>&1 &
    stream=$!
    tries=0
    until grep -q open "$work/stream" || [ "$tries" -gt 50 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    start=$(date +%s)
    stop_server TERM
    wait "$stream"
    if grep -q ended "$work/stream" && [ $(($(date +%s) - start)) -le 5 ]; then
        echo 'ok - a stream of metrics ends in order when the server stops'
    else
        cat "$work/stream"
        echo 'not ok - a stream of metrics ends in order when the server stops'
        status=1
    fi
fi
wait "$server"
code=$?
server=
if [ "$code" -eq 0 ]; then
    echo 'ok - mtplx serve ends with status 0 on SIGTERM'
else
    tail -n 40 "$work/err"
    echo "not ok - mtplx serve ended with status $code"
    status=1
fi
exit "$status"
