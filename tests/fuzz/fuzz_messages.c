/* Fuzz target: one byte chooses options, the rest is a conversation as JSON. It must be refused in
 * a sentence about the messages, or come out in the promised form, which is taken again. */
#include "text/messages.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_calls(const json_t *calls)
{
    size_t i;
    json_t *call;
    json_array_foreach(calls, i, call)
    {
        const json_t *f = json_object_get(call, "function");
        if (!json_is_string(json_object_get(f, "name")) ||
            !json_is_object(json_object_get(f, "arguments")))
            abort();
    }
}

static void check(const json_t *messages)
{
    static const char roles[] = " system user assistant tool ";
    size_t i;
    json_t *m;
    json_array_foreach(messages, i, m)
    {
        const char *role = json_string_value(json_object_get(m, "role"));
        if (!role || !strstr(roles, role) || !json_is_string(json_object_get(m, "content")))
            abort();
        check_calls(json_object_get(m, "tool_calls"));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const struct mx_messages_options o = {
        .thinking = (enum mx_thinking)(data[0] & 3),
        .style = (enum mx_reasoning_style)(data[0] / 4 % 3),
        .system_first = data[0] >= 128,
    };
    mtplx_error err = {0};
    json_t *in = json_loadb((const char *)data + 1, size - 1, JSON_ALLOW_NUL, NULL), *out, *again;
    if (mx_messages_normalise(in, &o, &out, &err) == MTPLX_OK) {
        check(out);
        if (mx_messages_normalise(out, &o, &again, &err) != MTPLX_OK)
            abort();
        json_decref(again);
        json_decref(out);
    } else if (out || strncmp(err.message, "messages", 8) != 0) {
        abort();
    }
    json_decref(in);
    return 0;
}
