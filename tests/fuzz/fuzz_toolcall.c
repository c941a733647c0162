/* Fuzz target: three bytes choose syntax, held bytes and cuts; the rest is an answer. Cut in any
 * way it must give the same events and counts; arguments of complete calls must be a JSON object
 * (of UTF-8, if the answer is); and where there is no call, the text must come out as it went in.
 */
#include "base/strbuf.h"
#include "text/toolcall.h"

#include <stdlib.h>
#include <string.h>

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"properties\":{"
    "\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},\"free\":{},"
    "\"list\":{\"type\":\"array\"},\"maybe\":{\"type\":[\"string\",\"null\"]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"ping\"}}]";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct run {
    struct mx_strbuf log, args;
    struct mx_toolcall_counts counts;
    size_t text; /* bytes of it */
    int last, calls, ended;
};

static void on_event(void *arg, enum mx_tool_event event, int call, const char *text, size_t n)
{
    struct run *r = arg;
    if ((int)event != r->last)
        mx_strbuf_printf(&r->log, "|%d:%d:", (int)event, call);
    r->last = (int)event;
    mx_strbuf_append(&r->log, text, n);
    if (event == MX_TOOL_TEXT) {
        r->text += n;
    } else if (event == MX_TOOL_BEGIN) {
        if (call != r->calls++)
            abort();
        mx_strbuf_clear(&r->args);
    } else if (event == MX_TOOL_ARGS) {
        mx_strbuf_append(&r->args, text, n);
    } else {
        json_error_t e;
        json_t *v =
            json_loadb(r->args.data, r->args.len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
        enum json_error_code code = json_error_code(&e);
        if (!json_is_object(v) && code != json_error_numeric_overflow &&
            code != json_error_null_byte_in_key)
            abort();
        json_decref(v);
        r->ended++;
    }
}

static void run(struct run *r, const struct mx_toolcall_options *o, const char *text, size_t n,
                size_t step)
{
    *r = (struct run){.last = -1};
    struct mx_toolcall *t = mx_toolcall_new(o, on_event, r, NULL);
    if (!t)
        abort();
    for (size_t i = 0; i < n; i += step) {
        if (!mx_toolcall_push(t, text + i, step < n - i ? step : n - i))
            abort();
    }
    if (!mx_toolcall_finish(t))
        abort();
    r->counts = *mx_toolcall_get_counts(t);
    mx_toolcall_free(t);
}

static void check(const struct run *a, const struct run *b, size_t n)
{
    if (a->log.len != b->log.len || (a->log.len && memcmp(a->log.data, b->log.data, a->log.len)))
        abort();
    if (memcmp(&a->counts, &b->counts, sizeof a->counts) != 0 ||
        a->counts.parsed != (unsigned)a->ended || a->ended > a->calls)
        abort();
    bool dropped = a->counts.stray + a->counts.dropped > 0;
    if (a->text > n || (a->calls == 0 && !dropped && a->text != n))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3)
        return 0;
    json_t *tools = data[0] & 8 ? NULL : json_loads(tools_text, 0, NULL);
    const struct mx_toolcall_options o = {
        .syntax = (enum mx_tool_syntax)(data[0] & 7),
        .tools = tools,
        .hold_bytes = data[1],
        .max_bytes = data[0] & 16 ? 64 : 0,
        .max_calls = data[0] & 32 ? 1 : 0,
    };
    const char *text = (const char *)data + 3;
    size_t n = size - 3;
    struct run whole, cut;
    run(&whole, &o, text, n, n + 1);
    run(&cut, &o, text, n, 1 + data[2] % 16);
    check(&whole, &cut, n);
    mx_strbuf_free(&whole.log);
    mx_strbuf_free(&whole.args);
    mx_strbuf_free(&cut.log);
    mx_strbuf_free(&cut.args);
    json_decref(tools);
    return 0;
}
