/* Fuzz target: request bodies. What the pass before the parser lets through must obey its limits
 * and parse, or be refused in one valid sentence; fields of any type must be read or refused by
 * name. */
#include "base/utf8.h"
#include "serve/body.h"
#include "serve/fields.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void check_error(const struct mx_api_error *e)
{
    require(e->status == 400 || e->status == 413 || e->status == 422);
    require(e->message[0] && mx_utf8_valid(e->message, strlen(e->message)));
    require(mx_utf8_valid(e->param, strlen(e->param)));
    json_decref(e->details);
}

static size_t depth_of(const json_t *v)
{
    size_t deepest = 0, i;
    const char *key;
    json_t *child;
    if (json_is_array(v)) {
        json_array_foreach(v, i, child)
        {
            size_t d = depth_of(child);
            deepest = d > deepest ? d : deepest;
        }
        return deepest + 1;
    }
    if (!json_is_object(v))
        return 0;
    json_object_foreach((json_t *)v, key, child)
    {
        size_t d = depth_of(child);
        deepest = d > deepest ? d : deepest;
    }
    return deepest + 1;
}

/* Every reader on one field. */
static void read_field(const json_t *body, const char *name)
{
    struct mx_api_error e = {0};
    struct mx_fields f = {body, "", &e};
    double d = 0.5;
    int64_t n = 3;
    bool b = false;
    const char *s = NULL;
    const json_t *o = NULL;
    int choice = -1;
    if (!mx_field_number(&f, name, 0, 2, &d))
        check_error(&e);
    require(d >= 0 && d <= 2);
    if (!mx_field_int(&f, name, -5, 100, &n))
        check_error(&e);
    require(n >= -5 && n <= 100);
    if (!mx_field_bool(&f, name, &b))
        check_error(&e);
    if (!mx_field_string(&f, name, 64, &s))
        check_error(&e);
    require(!s || strlen(s) <= 64);
    if (!mx_field_choice(&f, name, "auto none required", &choice))
        check_error(&e);
    require(choice >= -1 && choice <= 2);
    if (!mx_field_object(&f, name, &o))
        check_error(&e);
    if (!mx_field_array(&f, name, 16, &o))
        check_error(&e);
    if (!mx_field_need(&f, name))
        check_error(&e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mx_api_error e = {0};
    char *text = malloc(size + 1);
    memcpy(text, data, size);
    json_t *body = mx_body_parse(text, size, &e);
    free(text);
    if (!body) {
        check_error(&e);
        return 0;
    }
    require(json_is_object(body) && depth_of(body) <= MX_BODY_DEPTH);
    char *out = json_dumps(body, JSON_COMPACT);
    require(out && mx_utf8_valid(out, strlen(out)));
    free(out);
    const char *key;
    json_t *value;
    json_object_foreach(body, key, value)
    {
        read_field(body, key);
    }
    read_field(body, "missing");
    mx_fields_unknown(body, "model messages stream");
    json_decref(body);
    return 0;
}
