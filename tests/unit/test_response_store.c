/* The store of responses: bounds, order of eviction, who sees what, and threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/response_store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool add(struct mx_response_store *s, const char *client, const char *id,
                const char *response)
{
    return mx_response_store_add(
        s, &(struct mx_response_record){
               .id = id, .client = client, .response = response, .input = "[1]", .context = "[]"});
}

static bool has(struct mx_response_store *s, const char *client, const char *id)
{
    const struct mx_response_record *r = mx_response_store_get(s, client, id);
    mx_response_record_unref(r);
    return r != NULL;
}

static void test_get(void **state)
{
    (void)state;
    struct mx_response_store *s = mx_response_store_new(8, 1 << 20);
    assert_true(add(s, "a", "resp_1", "{\"x\":1}"));
    const struct mx_response_record *r = mx_response_store_get(s, "a", "resp_1");
    assert_non_null(r);
    assert_string_equal(r->response, "{\"x\":1}");
    assert_string_equal(r->input, "[1]");
    assert_string_equal(r->context, "[]");
    assert_true(mx_response_store_remove(s, "a", "resp_1"));
    assert_string_equal(r->id, "resp_1"); /* a reader's record outlives its removal */
    mx_response_record_unref(r);
    assert_false(has(s, "a", "resp_1"));
    assert_false(mx_response_store_remove(s, "a", "resp_1"));
    mx_response_store_free(s);
    mx_response_store_free(NULL);
}

/* One client's responses are not there for another, who may have others of the same id. */
static void test_clients(void **state)
{
    (void)state;
    struct mx_response_store *s = mx_response_store_new(8, 1 << 20);
    assert_true(add(s, "a", "resp_1", "{\"of\":\"a\"}"));
    assert_false(has(s, "b", "resp_1"));
    assert_false(has(s, "", "resp_1"));
    assert_false(has(s, "ar", "esp_1"));
    assert_false(mx_response_store_remove(s, "b", "resp_1"));
    assert_true(add(s, "b", "resp_1", "{\"of\":\"b\"}"));
    const struct mx_response_record *r = mx_response_store_get(s, "a", "resp_1");
    assert_string_equal(r->response, "{\"of\":\"a\"}");
    mx_response_record_unref(r);
    mx_response_store_set_job(s, "b", "resp_1", 7);
    assert_int_equal(mx_response_store_job(s, "a", "resp_1"), 0);
    mx_response_store_free(s);
}

static void test_entries_are_bounded(void **state)
{
    (void)state;
    struct mx_response_store *s = mx_response_store_new(3, 1 << 20);
    char id[16];
    size_t entries, bytes;
    for (int i = 0; i < 3; i++) {
        snprintf(id, sizeof id, "resp_%d", i);
        assert_true(add(s, "a", id, "{}"));
    }
    assert_true(has(s, "a", "resp_0")); /* used, so resp_1 is the oldest */
    assert_true(add(s, "a", "resp_3", "{}"));
    assert_true(has(s, "a", "resp_0") && has(s, "a", "resp_2") && has(s, "a", "resp_3"));
    assert_false(has(s, "a", "resp_1"));
    assert_true(add(s, "a", "resp_3", "{}")); /* replaces, evicts none */
    mx_response_store_size(s, &entries, &bytes);
    assert_int_equal(entries, 3);
    for (int i = 0; i < 1000; i++) {
        snprintf(id, sizeof id, "resp_%d", i);
        assert_true(add(s, i % 2 ? "a" : "b", id, "{}"));
    }
    mx_response_store_size(s, &entries, &bytes);
    assert_int_equal(entries, 3);
    mx_response_store_free(s);
    s = mx_response_store_new(0, 1 << 20);
    assert_false(add(s, "a", "resp_1", "{}"));
    mx_response_store_free(s);
}

static void test_bytes_are_bounded(void **state)
{
    (void)state;
    enum { MAX = 64 << 10, BIG = 10 << 10 };
    struct mx_response_store *s = mx_response_store_new(1000, MAX);
    char *big = malloc(MAX + 1), id[16];
    size_t entries, bytes;
    memset(big, 'x', MAX);
    big[MAX] = '\0';
    assert_true(add(s, "a", "small", "{}"));
    assert_false(add(s, "a", "huge", big)); /* larger than the store: nothing has to go for it */
    assert_true(has(s, "a", "small"));
    big[BIG] = '\0';
    for (int i = 0; i < 50; i++) {
        snprintf(id, sizeof id, "resp_%d", i);
        assert_true(add(s, "a", id, big));
        mx_response_store_size(s, &entries, &bytes);
        assert_true(bytes <= MAX && bytes >= entries * BIG - BIG);
    }
    assert_true(entries == 6 && has(s, "a", "resp_49") && !has(s, "a", "resp_43"));
    big[BIG] = 'x';
    assert_false(add(s, "a", "resp_49", big)); /* too large to take its own place */
    assert_false(has(s, "a", "resp_49"));
    free(big);
    mx_response_store_free(s);
}

static void test_pending(void **state)
{
    (void)state;
    struct mx_response_store *s = mx_response_store_new(8, 1 << 20);
    const struct mx_response_record p = {.id = "resp_1",
                                         .client = "a",
                                         .response = "{}",
                                         .input = "[1]",
                                         .context = "[2]",
                                         .pending = true};
    assert_true(mx_response_store_add(s, &p));
    mx_response_store_set_job(s, "a", "resp_1", 42);
    assert_int_equal(mx_response_store_job(s, "a", "resp_1"), 42);
    assert_true(mx_response_store_complete(s, "a", "resp_1", "{\"done\":1}"));
    assert_int_equal(mx_response_store_job(s, "a", "resp_1"), 0);
    mx_response_store_set_job(s, "a", "resp_1", 43); /* complete: no job any more */
    assert_int_equal(mx_response_store_job(s, "a", "resp_1"), 0);
    const struct mx_response_record *r = mx_response_store_get(s, "a", "resp_1");
    assert_string_equal(r->response, "{\"done\":1}");
    assert_string_equal(r->input, "[1]");
    assert_string_equal(r->context, "[2]");
    assert_false(r->pending);
    mx_response_record_unref(r);
    assert_true(mx_response_store_remove(s, "a", "resp_1"));
    assert_false(mx_response_store_complete(s, "a", "resp_1", "{}")); /* was deleted meanwhile */
    assert_false(has(s, "a", "resp_1"));
    mx_response_store_free(s);
}

struct worker {
    struct mx_response_store *s;
    char client[8];
};

/* Every record holds its id as its response, so a mixed-up one shows. */
static void *work(void *arg)
{
    const struct worker *w = arg;
    char id[24];
    unsigned r = (unsigned)w->client[0];
    for (int i = 0; i < 20000; i++) {
        r = r * 1664525u + 1013904223u;
        snprintf(id, sizeof id, "resp_%u", (r >> 16) % 64);
        switch ((r >> 8) % 4) {
        case 0: add(w->s, w->client, id, id); break;
        case 1: mx_response_store_remove(w->s, w->client, id); break;
        case 2: mx_response_store_complete(w->s, w->client, id, id); break;
        default: {
            const struct mx_response_record *rec = mx_response_store_get(w->s, w->client, id);
            if (rec && (strcmp(rec->response, id) != 0 || strcmp(rec->client, w->client) != 0))
                return "mixed up";
            mx_response_record_unref(rec);
        }
        }
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    enum { N = 4 };
    struct mx_response_store *s = mx_response_store_new(40, 1 << 20);
    struct worker w[N];
    pthread_t t[N];
    size_t entries, bytes;
    for (int i = 0; i < N; i++) {
        w[i].s = s;
        snprintf(w[i].client, sizeof w[i].client, "%c", 'a' + i / 2);
        assert_int_equal(pthread_create(&t[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        void *wrong = NULL;
        pthread_join(t[i], &wrong);
        if (wrong)
            fail_msg("%s", (const char *)wrong);
    }
    mx_response_store_size(s, &entries, &bytes);
    assert_true(entries <= 40);
    mx_response_store_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get),
        cmocka_unit_test(test_clients),
        cmocka_unit_test(test_entries_are_bounded),
        cmocka_unit_test(test_bytes_are_bounded),
        cmocka_unit_test(test_pending),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
