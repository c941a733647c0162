/* Fuzz target: the input is a template, rendered with a fixed conversation under tight limits. It
 * must end in output or an error, without undefined behaviour and within the limits; what does
 * render must be valid UTF-8 and must render to the same bytes again. */
#include "base/utf8.h"
#include "text/jinja.h"

#include <stdlib.h>
#include <string.h>

static const char conversation[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\" Be brief. \"},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"h\\u00e9llo\"}]},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
    "\"arguments\":{\"a\":1,\"b\":[2.5,true,null],\"c\":{\"d\":\"x\"}}}}]},"
    "{\"role\":\"tool\",\"content\":\"l1\\nl2\\u0000\\ud83d\\ude00\"}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}],"
    "\"add_generation_prompt\":true,\"x\":7,\"y\":-2.5,\"s\":\"a,b c\",\"n\":null}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static mtplx_status render(const struct mx_jinja *j, const json_t *globals, struct mx_strbuf *out)
{
    const struct mx_jinja_limits limits = {
        .max_output = 1 << 20, .max_memory = 8 << 20, .max_steps = 200000, .max_depth = 50};
    mtplx_error err = {0};
    mtplx_status status = mx_jinja_render(j, globals, &limits, 1700000000, out, &err);
    if (status != MTPLX_OK && !strstr(err.message, " line "))
        abort();
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mtplx_error err = {0};
    struct mx_jinja *j = mx_jinja_parse((const char *)data, size, "fuzz", &err);
    if (!j) {
        if (err.status == MTPLX_OK)
            abort();
        return 0;
    }
    json_t *globals = json_loads(conversation, JSON_ALLOW_NUL, NULL);
    struct mx_strbuf a, b;
    mx_strbuf_init(&a, 0);
    mx_strbuf_init(&b, 0);
    if (render(j, globals, &a) == MTPLX_OK) {
        if (a.len > 1 << 20 || !mx_utf8_valid(a.data ? a.data : "", a.len))
            abort();
        if (render(j, globals, &b) != MTPLX_OK || a.len != b.len ||
            (a.len && memcmp(a.data, b.data, a.len) != 0))
            abort();
    }
    mx_strbuf_free(&a);
    mx_strbuf_free(&b);
    json_decref(globals);
    mx_jinja_free(j);
    return 0;
}
