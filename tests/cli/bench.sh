#!/bin/sh
# `mtplx bench`: a quick run, its reports, wrong usage, interrupts.
. tests/cli/_lib.sh

run bench --quick --prompt 'Write a haiku' --csv "$work/report.csv"
check 'bench --quick prints the table' succeeds 'Two streams'
check 'it has passes of several rows' has "$out" 'c(8) '
check 'it compares depths' has "$out" 'x plain'
check 'it states the shares of the machine' has "$out" 'of stream read'
check '--csv writes a line per figure' grep -q '^depth,3,ratio_to_plain,' "$work/report.csv"
check 'the CSV has one width' \
    awk -F, 'NR == 1 { n = NF } NF != n { bad = 1 } END { exit bad || NR < 20 }' "$work/report.csv"

quick='--rounds 1 --tokens 4 --prefill 8 --context 8'
# shellcheck disable=SC2086
run bench $quick --depths 1 --json -
check '--json - is one JSON object and nothing else' is_json
check 'the JSON has the costs' has "$out" '"bytes_per_decode_step"'
check 'only the depths asked for' test "$(grep -c '"depth":' "$work/out")" -eq 2
# shellcheck disable=SC2086
run bench $quick --depths 0 --context 4,100000 models/nano
check 'what exceeds the window is skipped and said' succeeds "skipped: more than the model's window"
# shellcheck disable=SC2086
run bench $quick --no-mtp
check 'without an MTP head it measures plain decoding' succeeds 'No MTP head'
# shellcheck disable=SC2086
run bench $quick --json "$work/report.json"
check '--json FILE keeps the table' succeeds 'Plain decoding'
check 'and writes the file' grep -q '"two_streams_plain"' "$work/report.json"

for list in 9 3..1 1,1 2,1 '' '1,' 1..x -1 1...2 99999999999999999999; do
    run bench --depths="$list"
    check "--depths '$list' is refused" fails_with 2 '--depths'
done
run bench --context 0
check 'a context of nothing is refused' fails_with 2 '--context wants'
run bench --rounds 0
check '--rounds 0 is refused' fails_with 2 '--rounds'
run bench --tokens 3
check '--tokens 3 is refused' fails_with 2 '--tokens'
run bench --prompt a --prompt-tokens 3
check 'two prompts are refused' fails_with 2 'exclude each other'
run bench --frob
check 'an unknown flag is refused' fails_with 2 'frob'
run bench one two
check 'two models are refused' fails_with 2 'one operand'
run bench "$work/none"
check 'a missing model is an error' fails_with 1 'there is no directory'
run bench --json "$work/none/report.json"
check 'a file in a missing directory is refused at once' fails_with 2 'cannot be written'
run bench --csv "$work"
check 'a directory is not a file' fails_with 2 'is a directory'
run bench --prompt-tokens 9000
check 'a prompt beyond the window is an error' fails_with 1 "do not fit the model's window"

mkdir "$work/stopped"
"$MTPLX" bench --rounds 100 --json "$work/stopped/report.json" >"$work/out" 2>"$work/err" &
pid=$!
sleep 1
kill -TERM "$pid"
wait "$pid"
rc=$?
take
check 'an interrupt has its own status' test "$rc" -eq 143
check 'and leaves no file' test -z "$(ls -A "$work/stopped")"

finish
