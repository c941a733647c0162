#!/usr/bin/env bash
# `mtplx serve` and `mtplx stop`: start, keys, taken ports, draining, signals, records. Requests go
# through bash's /dev/tcp, so any other shell hands over to bash.
# shellcheck disable=SC2317 # functions are called through check
if [ -z "${BASH_VERSION:-}" ]; then exec bash "$0" "$@"; fi
. tests/cli/_lib.sh

export XDG_RUNTIME_DIR=$work/run
mkdir "$work/run"
server=

# Whatever happens, no server outlives the test.
trap '[ -n "$server" ] && kill -KILL "$server" 2>/dev/null; rm -rf "$work"' EXIT

# start FLAG...: a server on a free port; $server is its process, $port its port.
start() {
    : >"$work/ready"
    "$MTPLX" serve --port 0 --threads 1 "$@" >"$work/ready" 2>"$work/log" </dev/null &
    server=$!
    port=
    for _ in $(seq 300); do
        port=$(sed -n 's|^mtplx ready: https*://127.0.0.1:\([0-9]*\)/v1 .*|\1|p' "$work/ready")
        [ -n "$port" ] && return 0
        kill -0 "$server" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}

# ended: the server's exit status in $rc, once it has ended.
ended() {
    wait "$server" 2>/dev/null
    rc=$?
    server=
    out=$(cat "$work/ready")
    err=$(cat "$work/log")
}

# request METHOD PATH HEADERS BODY: the whole reply in $out.
request() {
    exec 3<>"/dev/tcp/127.0.0.1/$port" || return 1
    printf '%s %s HTTP/1.0\r\nHost: localhost\r\n%bContent-Length: %s\r\n\r\n%s' \
        "$1" "$2" "$3" "${#4}" "$4" >&3
    out=$(cat <&3)
    exec 3>&-
}

chat='{"messages":[{"role":"user","content":"Hello"}],"max_tokens":8}'
long='{"prompt":"Once","max_tokens":4000,"stream":true,"ignore_eos":true,"temperature":0}'

# ---- Wrong command lines -------------------------------------------------------------------------

run serve --host 0.0.0.0
check 'a public address needs a key' test "$rc" -eq 2
check 'and the sentence says which flags' has "$err" '--api-key'
run serve --no-auth --api-key k
check '--no-auth excludes a key' fails_with 2 'exclude each other'
run serve --memory-budget lots
check 'a wrong size is named' fails_with 2 '--memory-budget takes a size'
run serve --scheduler-mode fast
check 'a wrong mode is named' fails_with 2 '--scheduler-mode'
run serve --model "$work/none"
check 'a missing model fails' test "$rc" -eq 2
run serve word
check 'serve takes no words' fails_with 2 "not 'word'"
run serve --port 1 --host 192.0.2.1 --api-key k
check 'an address that is not ours fails' test "$rc" -eq 1
run serve --port 0 --quiet --request-log "$work/none/log"
check 'a log that cannot be opened fails' fails_with 1 'cannot open the request log'
run serve --port 0 --tls-cert "$work/none.pem" --tls-key "$work/none.pem"
check 'and so does a certificate that is not there' \
    test "$rc:$(grep -c '^.2/5' "$work/err"):$(grep -c 'none.pem' "$work/err")" = 1:0:1
touch "$work/open.key"
chmod 644 "$work/open.key"
run serve --api-key-file "$work/open.key"
check 'a key file that others can read is refused' fails_with 2 'chmod 600'

# ---- A plain server ------------------------------------------------------------------------------

check 'serve starts on a free port' start --request-log "$work/requests"
check 'the steps are numbered' grep -q '^\[5/5\]' "$work/log"
request GET /health '' ''
check 'health answers' has "$out" '200 OK'
check 'health names the process' has "$out" "\"pid\":$server"
request POST /v1/chat/completions '' "$chat"
check 'a chat completion is answered' has "$out" '"object":"chat.completion"'
request POST /v1/chat/completions '' '{"messages":'
check 'broken JSON is a 400' has "$out" '400 Bad Request'
request GET /health 'Origin: https://evil.example\r\n' ''
check 'a foreign page is refused' has "$out" '403 Forbidden'
check 'the record is there for its owner only' \
    test "$(stat -c %a "$work/run/mtplx/serve-$port.json")" = 600
check 'the request log has four lines' test "$(wc -l <"$work/requests")" -eq 4
check 'and no text of the prompt' test "$(grep -c Hello "$work/requests")" -eq 0

run serve --port "$port"
check 'a port that mtplx has is told with its process' \
    test "$rc:$(grep -c "already running (pid $server)" "$work/err")" = 1:1

kill -USR1 "$server" # of no meaning to it
run stop --port "$port"
check 'stop ends the server' succeeds "stopped the server on port $port (pid $server, SIGTERM"
ended
check 'which exits with 0' test "$rc" -eq 0
check 'and takes its record away' test ! -e "$work/run/mtplx/serve-$port.json"
run stop --port "$port"
check 'stop with nothing there exits with 1' fails_with 1 'no server is running there'
run stop --port "$port" --json
check 'stop --json says so too' test "$rc:$(printf %s "$out" | grep -c '"stopped":false')" = 1:1
check 'in JSON' is_json

# ---- Keys ----------------------------------------------------------------------------------------

check 'serve makes a key file' start --api-key-file "$work/key" --quiet
check 'for its owner only' test "$(stat -c %a "$work/key")" = 600
check '--quiet leaves standard error alone' test ! -s "$work/log"
key=$(cat "$work/key")
check 'with a key of 54 characters' test "${#key}" -eq 54
request GET /v1/models '' ''
check 'no key, no answer' has "$out" '401 Unauthorized'
request GET /v1/models "Authorization: Bearer $key\r\n" ''
check 'the key opens' has "$out" '"object":"list"'
request GET /v1/models "x-api-key: $key\r\n" ''
check 'in either header' has "$out" '"object":"list"'
kill -INT "$server" 2>/dev/null
run stop --port "$port" --grace-seconds 20
ended
check 'a server with a key can be stopped too' test "$rc" -eq 0

# ---- The session bank on disk --------------------------------------------------------------------

numbers=$(seq -s ' ' 1 200)
counting="{\"messages\":[{\"role\":\"user\",\"content\":\"Go on: $numbers\"}],\"max_tokens\":4}"
ssd="--ssd-session-cache on --ssd-session-cache-dir $work/ssd"
small='--ssd-session-cache-min-prefix-tokens 64 --quiet'

# shellcheck disable=SC2086 # lists of flags
check 'serve makes a directory for states' start $ssd $small
check 'for its owner only' test "$(stat -c %a "$work/ssd")" = 700
request POST /v1/chat/completions '' "$counting"
check 'a new prompt is read' has "$out" '"cache_miss_reason":"new_session"'
first=$server
first_port=$port
# shellcheck disable=SC2086
check 'a second server starts' start $ssd
check 'with a warning that it does not write' has "$(cat "$work/log")" 'in use by another process'
kill -TERM "$server"
ended
server=$first
port=$first_port
kill -TERM "$server"
ended
check 'the first one ends in order' test "$rc" -eq 0
check 'files are for their owner only' \
    test -z "$(find "$work/ssd" -type f ! -perm 600 -o -type d ! -perm 700)"
check 'there are some' test -n "$(find "$work/ssd/objects" -type f)"
# shellcheck disable=SC2086
check 'after a restart' start $ssd $small
request POST /v1/chat/completions '' "$counting"
check 'the same prompt comes from disk' has "$out" '"cache_from_disk":true'
left=$(printf '%s' "$out" | sed -n 's/.*"new_prefill_tokens":\([0-9]*\).*/\1/p')
check 'all but what opens its answer' test "${left:-99}" -le 8
request DELETE '/admin/sessions?cold=true' '' ''
check 'states on disk can be removed' has "$out" '"cold":true'
kill -TERM "$server"
ended
check 'and are gone' test -z "$(find "$work/ssd/objects" -type f)"

: >"$work/file"
check 'a directory that cannot be is a warning' \
    start --ssd-session-cache on --ssd-session-cache-dir "$work/file/ssd"
check 'in one sentence' has "$(cat "$work/log")" 'going on without the SSD session cache'
request GET /admin/cache '' ''
check 'and the server tells so' has "$out" '"ssd":{"mode":"off"}'
kill -TERM "$server"
ended

# ---- Draining ------------------------------------------------------------------------------------

check 'serve starts again' start
exec 4<>"/dev/tcp/127.0.0.1/$port"
printf 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %s\r\n\r\n%s' \
    "${#long}" "$long" >&4
IFS= read -r line <&4
check 'a stream begins' has "$line" '200 OK'
kill -TERM "$server"
stream=$(cat <&4)
exec 4>&-
ended
check 'SIGTERM lets it finish' has "$stream" 'data: [DONE]'
check 'and the server exits with 0' test "$rc" -eq 0

check 'and again' start --drain-seconds 600
exec 4<>"/dev/tcp/127.0.0.1/$port"
printf 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %s\r\n\r\n%s' \
    "${#long}" "$long" >&4
IFS= read -r line <&4
kill -TERM "$server"
sleep 0.1
kill -TERM "$server" 2>/dev/null
ended
exec 4>&-
check 'a second signal ends it at once, still with 0' test "$rc" -eq 0

# ---- TLS -----------------------------------------------------------------------------------------

run serve --tls-cert "$work/cert.pem"
check 'TLS needs certificate and key' test "$rc:$(grep -c 'both --tls-cert' "$work/err")" = 2:1
if command -v openssl >/dev/null && openssl req -x509 -newkey ec -nodes -days 2 \
    -pkeyopt ec_paramgen_curve:P-256 -subj /CN=localhost \
    -keyout "$work/tls.pem" -out "$work/cert.pem" 2>/dev/null; then
    check 'serve speaks TLS' start --tls-cert "$work/cert.pem" --tls-key "$work/tls.pem"
    out=$(printf 'GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n' |
        openssl s_client -quiet -connect "127.0.0.1:$port" 2>/dev/null)
    check 'a request over TLS is answered' has "$out" '200 OK'
    out=$(printf 'GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n' |
        openssl s_client -quiet -connect "127.0.0.1:$port" -tls1_1 -cipher ALL:@SECLEVEL=0 \
            2>/dev/null || true)
    check 'TLS before 1.2 is not spoken' test "$out" = ''
    run stop --port "$port"
    check 'stop finds it by its record' succeeds 'stopped'
    ended
    check 'and it exits with 0' test "$rc" -eq 0
    run serve --port 0 --tls-cert "$work/tls.pem" --tls-key "$work/cert.pem" --quiet
    check 'files that do not fit are refused' fails_with 1 'matching pair'
fi

# ---- A server that does not answer ---------------------------------------------------------------

check 'serve starts a last time' start
kill -STOP "$server"
run stop --port "$port" --grace-seconds 0.2 --json
check 'a hung server is found by its record and killed' succeeds '"signal":"SIGKILL"'
ended
check 'and is gone' test "$rc" -eq 137

finish
