#!/bin/sh
# `mtplx cache`: listing, checking, collecting and clearing a session cache on disk.
#
# tests/cli/cache/objects holds two small snapshots and the three blocks that they need, one of them
# shared, without a manifest: opening them makes one, from the headers of the files.
. tests/cli/_lib.sh

cache=$work/sessions

fresh() {
    rm -rf "$cache"
    mkdir "$cache"
    cp -R tests/cli/cache/objects "$cache/objects"
}

# object KIND: the path of the first object of that kind, b or s.
object() {
    find "$cache/objects" -name "*.$1" | sort | head -n 1
}

objects() {
    find "$cache/objects" -type f | wc -l | tr -d ' '
}

fresh
run cache ls --dir "$cache"
check 'ls: exit 0 without a manifest' test "$rc" -eq 0
check 'ls: a snapshot of 100 tokens' has "$out" '100 tokens'
check 'ls: its session' has "$out" 'alice'
check 'ls: the other one' has "$out" 'bob'
check 'ls: the sum' has "$out" '2 snapshots and 3 blocks'
run cache ls --dir "$cache" --session bob
check 'ls --session: only that one' succeeds '200 tokens'
check 'ls --session: not the other' test "$(printf '%s' "$out" | grep -c alice)" -eq 0
run cache ls --dir "$cache" --json
check 'ls --json: is JSON' is_json
check 'ls --json: entries' has "$out" '"session": "alice"'
check 'ls --json: not in use' has "$out" '"in_use": false'
check 'the directory is private' test "$(ls -ld "$cache" | cut -c1-10)" = drwx------
MTPLX_SSD_SESSION_CACHE_DIR=$cache
export MTPLX_SSD_SESSION_CACHE_DIR
run cache ls
check 'ls: directory from the environment' succeeds '2 snapshots'
unset MTPLX_SSD_SESSION_CACHE_DIR

run cache check --dir "$cache"
check 'check: all sound' succeeds '5 files'
check 'check: says so' has "$out" 'all sound'
run cache check --dir "$cache" --json
check 'check --json: is JSON' is_json
check 'check --json: counts' has "$out" '"checked_files": 5'
run cache gc --dir "$cache"
check 'gc: nothing to do' succeeds 'removed 0 stray files'

# Damage.
printf 'junk' >"$cache/objects/stray"
file=$(object s)
head -c 700 "$file" >"$work/short" && cat "$work/short" >"$file"
run cache check --dir "$cache"
check 'check: a cut file is found when opening or checking' has "$out" 'drop'
check 'check: and is no success' test "$rc" -eq 3
run cache ls --dir "$cache"
check 'check: its snapshot is gone' succeeds '1 snapshot and'
run cache check --dir "$cache"
check 'check: the second time all is sound' succeeds 'all sound'

fresh
run cache ls --dir "$cache"
: >"$(object b)"
run cache check --dir "$cache"
check 'check: an emptied file is no success' test "$rc" -eq 3
check 'check: nor is all sound' test "$(printf '%s' "$out" | grep -c 'all sound')" -eq 0

fresh
run cache ls --dir "$cache"
file=$(object b)
size=$(wc -c <"$file")
head -c $((size - 20)) "$file" >"$work/flipped"
printf 'xxxxxxxxxxxxxxxxxxxx' >>"$work/flipped"
cat "$work/flipped" >"$file"
run cache check --dir "$cache"
check 'check: wrong bytes are found' test "$rc" -eq 3
check 'check: says what' has "$out" '1 bad, dropped'
run cache check --dir "$cache" --json
check 'check --json: is JSON afterwards' is_json
check 'check --json: nothing bad any more' has "$out" '"bad_files": 0'

fresh
echo 'not a database' >"$cache/manifest.db"
run cache ls --dir "$cache"
check 'a manifest that is none is set aside' succeeds '2 snapshots'
check 'a manifest that is none: one line' test "$(grep -c manifest "$work/out")" -eq 1

# Cleaning.
run cache clear --dir "$cache"
check 'clear: asks' fails_with 1 'add --yes'
run cache clear --dir "$cache" --session alice
check 'clear --session: asks' fails_with 1 'session "alice"'
check 'clear: nothing happened' test "$(objects)" -eq 5
run cache clear --dir "$cache" --session alice --yes
check 'clear --session: drops one' succeeds 'dropped 1 snapshot'
check 'clear --session: shared blocks stay' has "$out" '1 snapshot and 3 blocks'
run cache clear --dir "$cache" --session nobody -y
check 'clear --session: of nobody' succeeds 'dropped 0 snapshots'
run cache clear --dir "$cache" --yes --json
check 'clear --json: is JSON' is_json
check 'clear: all files are gone' test "$(objects)" -eq 0
run cache ls --dir "$cache"
check 'ls: an empty cache' succeeds '0 snapshots and 0 blocks'

fresh
run cache gc --dir "$cache" --max-size 1K
check 'gc --max-size: evicts' succeeds 'dropped 2 snapshots'
run cache gc --dir "$cache" --max-size much
check 'gc --max-size: a word' fails_with 2 '"much"'

# In use.
if command -v flock >/dev/null 2>&1; then
    fresh
    run cache ls --dir "$cache"
    flock -o "$cache/lock" sleep 20 &
    holder=$!
    tries=0
    while flock -n "$cache/lock" true && [ $tries -lt 50 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    run cache ls --dir "$cache"
    check 'in use: ls lists' succeeds '2 snapshots'
    check 'in use: ls says so' has "$out" 'another process'
    run cache check --dir "$cache" --json
    check 'in use: check reads' has "$out" '"in_use": true'
    run cache gc --dir "$cache"
    check 'in use: gc does nothing' test "$rc" -eq 1
    check 'in use: gc says why' has "$err" 'in use'
    run cache clear --dir "$cache" --yes
    check 'in use: clear does nothing' test "$rc" -eq 1
    check 'in use: the files are there' test "$(objects)" -eq 5
    kill "$holder" 2>/dev/null
    wait "$holder" 2>/dev/null
else
    ok 'in use # skip: no flock program'
fi

# No directory.
for command in check ls gc 'clear --yes'; do
    # shellcheck disable=SC2086 # the last one has a flag
    run cache $command --dir "$work/none"
    check "$command: no directory" fails_with 1 'no session cache in'
done
check 'none is made' test ! -e "$work/none"
echo x >"$work/file"
run cache ls --dir "$work/file"
check 'a file is no directory' fails_with 1 'no session cache in'
run cache
check 'cache alone: usage' test "$rc" -eq 2
run cache prune
check 'cache prune: unknown' test "$rc" -eq 2
finish
