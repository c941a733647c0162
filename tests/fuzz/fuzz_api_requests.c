/* Request bodies of the Messages and Responses APIs: any JSON becomes a turn or an error. */
#include "serve/anthropic_int.h"
#include "serve/responses_int.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok, const struct mx_api_error *e, const json_t *messages)
{
    if (ok ? !json_is_array(messages) : e->status < 400 || !*e->message)
        abort();
}

/* A store with one response, which bodies may name. */
static struct mx_response_store *make_store(void)
{
    struct mx_response_store *s = mx_response_store_new(4, 1 << 16);
    mx_response_store_add(
        s, &(struct mx_response_record){
               .id = "resp_0",
               .client = "c",
               .response = "{\"output\":[{\"type\":\"message\",\"id\":\"msg_00000\",\"role\":"
                           "\"assistant\",\"content\":\"x\"}]}",
               .input = "[{\"type\":\"message\",\"role\":\"user\",\"content\":\"y\"}]",
               .context = "[]"});
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *body = json_loadb((const char *)data, size, 0, NULL);
    if (!json_is_object(body)) {
        json_decref(body);
        return 0;
    }
    for (int counting = 0; counting < 2; counting++) {
        struct mx_messages_request m = {0};
        struct mx_api_error e = {0};
        check(mx_messages_parse(body, counting, &m, &e), &e, m.messages);
        json_decref(e.details);
        mx_messages_request_free(&m);
    }
    struct mx_response_store *s = make_store();
    struct mx_responses_request r = {
        .responses = s, .client = "c", .request_id = "req_1", .model = "m"};
    struct mx_api_error e = {0};
    check(mx_responses_parse(body, &r, &e), &e, r.messages);
    mx_responses_request_free(&r);
    mx_response_store_free(s);
    json_decref(body);
    return 0;
}
