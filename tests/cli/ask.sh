#!/bin/sh
# `mtplx ask` with the nano model: text, pipes, JSON, statistics, reasoning, interrupts.
. tests/cli/_lib.sh

ask() {
    run ask --model "$nano" --max-tokens 12 --temperature 0 "$@"
}

ask Tell me a story.
first=$out
check 'an answer and nothing else' test "$rc" -eq 0 -a -n "$out" -a -z "$err"
check 'the answer ends with a newline' test "$(tail -c 1 "$work/out" | wc -l)" -eq 1
ask 'Tell me a story.'
check 'words are joined by blanks' test "$out" = "$first"
ask --no-mtp Tell me a story.
check 'greedy: --no-mtp gives the same text' test "$rc $out" = "0 $first"
for depth in 0 1 4 8; do
    ask --depth $depth Tell me a story.
    check "greedy: depth $depth gives the same text" test "$rc $out" = "0 $first"
done
for policy in auto none streak expected_value cost position_ema; do
    ask --depth-policy $policy Tell me a story.
    check "greedy: policy $policy gives the same text" test "$rc $out" = "0 $first"
done
ask --depth auto --context-copy off Tell me a story.
check 'greedy: copying or not gives the same text' test "$rc $out" = "0 $first"
ask --no-mtp --context-copy on Tell me a story.
check 'greedy: copying without MTP gives the same text' test "$rc $out" = "0 $first"
for kv in q8 q6 q4; do
    ask --kv-quant $kv --no-mtp Tell me a story.
    plain=$out
    ask --paged-kv-quant $kv --depth 4 Tell me a story.
    check "greedy: $kv cache, with and without drafts" test "$rc $out" = "0 $plain"
done
ask --threads 1 --prefill-chunk 32 Tell me a story.
check 'greedy: threads and chunks do not matter' test "$rc $out" = "0 $first"
ask --device ref Tell me a story.
check 'the reference device answers, too' test "$rc" -eq 0 -a -n "$out"
run ask --mod "$nano" --max-t 12 --temp 0 Tell me a story.
check 'abbreviated flags' test "$rc $out" = "0 $first"
run ask -m "$nano" -n12 -t=0 -- Tell me a story.
check 'one-letter flags' test "$rc $out" = "0 $first"
MTPLX_MODEL=$nano MTPLX_MAX_TOKENS=12 MTPLX_TEMPERATURE=0 "$MTPLX" ask Tell me a story. \
    >"$work/out" 2>"$work/err" </dev/null
rc=$?
take
check 'settings from the environment' test "$rc $out" = "0 $first"

echo 'Tell me a story.' >"$work/prompt"
run_with "$work/prompt" ask --model "$nano" --max-tokens 12 --temperature 0
check 'a prompt from a file' test "$rc $out" = "0 $first"
echo 'Tell me a story.' | "$MTPLX" ask -m "$nano" -n 12 -t 0 - >"$work/out" 2>"$work/err"
rc=$?
take
check 'a prompt from a pipe' test "$rc $out" = "0 $first"
echo 'story.' >"$work/prompt"
run_with "$work/prompt" ask --model "$nano" --max-tokens 12 --temperature 0 'Tell me a'
piped=$out
ask "$(printf 'Tell me a\n\nstory.')"
check 'piped text follows the words after an empty line' test "$rc $out" = "0 $piped"
"$MTPLX" ask -m "$nano" -n 12 -t 0 'Tell me a story.' <&- >"$work/out" 2>"$work/err"
rc=$?
take
check 'standard input may be closed' test "$rc $out" = "0 $first"

ask 'Was ist ein Märchen? 物語 🙂'
check 'a prompt beyond ASCII' test "$rc" -eq 0 -a -n "$out"
ask -- -x --depth
check 'after -- dashes are words' test "$rc" -eq 0 -a -n "$out"
ask '- one - two'
check 'a prompt that begins with a dash' test "$rc" -eq 0 -a -n "$out"
ask -5 plus 3
check 'a prompt that begins with a negative number' test "$rc" -eq 0 -a -n "$out"
ask --system 'You are a pirate.' Tell me a story.
check 'a system message' test "$rc" -eq 0 -a -n "$out"

sample() {
    run ask --model "$nano" --max-tokens 16 --temperature 1.2 --top-k 0 --top-p 1 "$@" Tell me more.
}
sample --seed 1
one=$out
sample --seed 1
check 'the same seed, the same answer' test "$rc $out" = "0 $one"
sample --seed 2
check 'another seed, another answer' test "$rc" -eq 0 -a "$out" != "$one"
ask --presence-penalty -0.5 --frequency-penalty 0.5 --repetition-penalty 1.1 --min-p 0.05 Go on.
check 'penalties, one of them negative' test "$rc" -eq 0 -a -n "$out"

ask --json Tell me a story.
check '--json prints one valid object' is_json
for key in '"answer"' '"reasoning":null' '"finish_reason":"length"' '"prompt_tokens"' \
    '"completion_tokens":12' '"tokens_per_second"' '"acceptance_by_depth"'; do
    check "--json has $key" has "$out" "$key"
done
ask --json 'Say "quote" and \backslash'
check '--json escapes' is_json
ask --stats Tell me a story.
check '--stats leaves standard output alone' test "$rc $out" = "0 $first"
for word in '12 generated' 'tok/s' 'tokens per forward' 'by depth' 'depths' 'predicted' \
    'first token' 'peak memory'; do
    check "--stats shows $word" has "$err" "$word"
done
ask --stats --depth 0 Tell me a story.
check '--stats without drafts' has "$err" 'no drafts'

ask --think Tell me a story.
check '--think answers' test "$rc" -eq 0
ask --no-think Tell me a story.
check '--no-think answers' test "$rc" -eq 0 -a -n "$out"
ask --think --quiet Tell me a story.
check '--quiet prints no notes' test "$rc" -eq 0 -a -z "$err"
ask --think --json Tell me a story.
check '--think --json is valid' is_json
check 'thinking goes to "reasoning"' test "${out#*\"reasoning\":\"}" != "$out"
ask --no-mtp --depth 2 Tell me a story.
check '--depth with --no-mtp is announced' has "$err" '--depth has no effect'
ask --quiet --no-mtp --depth 2 Tell me a story.
check '--quiet silences notes' test "$rc" -eq 0 -a -z "$err"

head -c 300000 /dev/zero | tr '\000' 'a' | sed 's/aaaa/word /g' >"$work/long"
run_with "$work/long" ask --model "$nano"
check 'a prompt beyond the context window is one sentence' fails_with 1 'context'

# Interrupts and lost readers. A negative frequency penalty makes a greedy answer that never ends.
endless() {
    "$MTPLX" ask --model "$nano" --temperature 0 --frequency-penalty -2 "$@" 'Tell me a story.'
}

terminate() { # terminate FLAGS...: SIGTERM after a second of work
    "$MTPLX" ask --model "$nano" --temperature 0 --frequency-penalty -2 "$@" Go on. \
        >"$work/out" 2>"$work/err" </dev/null &
    pid=$!
    sleep 1
    kill -s TERM "$pid"
    wait "$pid"
    rc=$?
    take
}

terminate --stats
check 'SIGTERM ends an answer with 143' test "$rc" -eq 143
check 'the statistics are still printed' has "$err" 'peak memory'
terminate --json
check 'SIGTERM with --json: 143 and a valid object' is_json
check 'SIGTERM with --json: finish_reason' has "$out" '"finish_reason":"cancelled"'

# Answers that obey: a digit string, JSON of a schema, a grammar.
for depth in 0 3 auto; do
    run ask --model "$nano" --depth $depth --temperature 1.3 --regex '[0-9]{3}-[0-9]{2}' Hello
    case $out in
    [0-9][0-9][0-9]-[0-9][0-9]) check "a regular expression at depth $depth" test "$rc" -eq 0 ;;
    *) check "a regular expression at depth $depth" false ;;
    esac
done
cat >"$work/schema.json" <<'END'
{"type": "object", "properties": {"ok": {"type": "boolean"}, "mood": {"enum": ["good", "bad"]}},
 "required": ["ok", "mood"], "additionalProperties": false}
END
run ask --model "$nano" --temperature 0 --json-schema "$work/schema.json" How are you?
case $(printf '%s' "$out" | tr -d ' \n') in
'{"ok":true,"mood":"good"}' | '{"ok":true,"mood":"bad"}' | '{"ok":false,"mood":"good"}' | \
    '{"ok":false,"mood":"bad"}') check 'a JSON schema' test "$rc" -eq 0 ;;
*) check 'a JSON schema' false ;;
esac
printf 'root ::= "yes" | "no"\n' >"$work/grammar.gbnf"
run ask --model "$nano" --no-think --grammar "$work/grammar.gbnf" Is it raining?
check 'a grammar' test "$rc $out" = "0 yes" -o "$rc $out" = "0 no"
run ask --model "$nano" --grammar "$work/grammar.gbnf" --regex x Hello
check 'two of them' fails_with 2 'only one of --json-schema, --grammar and --regex'
run ask --model "$nano" --grammar "$work/nothing.gbnf" Hello
check 'a grammar that is not there' fails_with 1 'nothing.gbnf'
printf 'root ::= "yes' >"$work/grammar.gbnf"
run ask --model "$nano" --grammar "$work/grammar.gbnf" Hello
check 'a grammar that is none' fails_with 1 'grammar.gbnf'
printf '{"type": "unknown"' >"$work/schema.json"
run ask --model "$nano" --json-schema "$work/schema.json" Hello
check 'a schema that is no JSON' fails_with 1 'schema.json'

# A shell starts background jobs with SIGINT ignored, so timeout has to send it.
if command -v timeout >/dev/null 2>&1; then
    timeout --foreground --preserve-status -s INT 1 "$MTPLX" ask --model "$nano" --temperature 0 \
        --frequency-penalty -2 --stats Go on. >"$work/out" 2>"$work/err" </dev/null
    rc=$?
    take
    check 'Ctrl-C ends an answer with 130' test "$rc" -eq 130
    check 'Ctrl-C: the line is finished' \
        test ! -s "$work/out" -o "$(tail -c 1 "$work/out" | wc -l)" -eq 1
    check 'Ctrl-C: the statistics are printed' has "$err" 'peak memory'
fi
# In a background job standard input is /dev/null unless it is given explicitly.
sleep 3 | {
    exec 3<&0
    "$MTPLX" ask --model "$nano" <&3 >"$work/out" 2>"$work/err" &
    pid=$!
    sleep 1
    kill -s TERM "$pid"
    wait "$pid"
    echo $? >"$work/rc"
}
check 'SIGTERM while the prompt is read' test "$(cat "$work/rc")" -eq 143

{
    endless 2>"$work/err" </dev/null
    echo $? >"$work/rc"
} | head -c 20 >/dev/null
check 'a reader that goes away: quiet, and not 0' test "$(cat "$work/rc")" -eq 1 -a ! -s "$work/err"
if [ -w /dev/full ]; then
    endless >/dev/full 2>"$work/err" </dev/null
    rc=$?
    out=
    err=$(cat "$work/err")
    check 'a full disk is reported' fails_with 1 'cannot write to standard output'
fi
endless >&- 2>"$work/err" </dev/null
rc=$?
check 'a closed standard output exits 1' test "$rc" -eq 1
finish
