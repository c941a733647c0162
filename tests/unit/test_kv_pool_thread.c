/* The KV block pool: blocks made, shared, copied and dropped by several threads at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/kv_pool.h"

#include <pthread.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 2000, SHARED = 16 };

static const struct mx_kv_layout layout = {
    .format = MX_KV_F16, .block_tokens = 64, .layers = 1, .kv_heads = 1, .head_dim = 8};

static struct mx_kv_block *shared[SHARED]; /* each thread holds a reference */

static void *worker(void *arg)
{
    struct mx_kv_pool *p = arg;
    size_t bytes = mx_kv_pool_block_bytes(p);
    for (int i = 0; i < ROUNDS; i++) {
        struct mx_kv_block *own = mx_kv_block_new(p);
        if (!own || mx_kv_block_shared(own))
            return p;
        memset(own->data, i & 0xff, bytes); /* B1: ours alone, so no race */
        struct mx_kv_block *copy = mx_kv_block_copy(mx_kv_block_ref(own));
        mx_kv_block_unref(own);
        if (!copy || copy->data == own->data || memcmp(copy->data, own->data, bytes) != 0)
            return p;
        mx_kv_block_unref(own);
        struct mx_kv_block *s = mx_kv_block_ref(shared[i % SHARED]);
        if (!mx_kv_block_shared(s))
            return p;
        mx_kv_block_unref(s);
        mx_kv_block_unref(copy);
        if (i % 256 == 0)
            mx_kv_pool_trim(p, 2 * bytes);
    }
    for (int i = 0; i < SHARED; i++)
        mx_kv_block_unref(shared[i]);
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    struct mx_device *d = mx_device_open("ref", 1, NULL);
    struct mx_kv_pool *p = mx_kv_pool_new(d, &layout);
    uint64_t used, idle;
    assert_non_null(p);
    for (int i = 0; i < SHARED; i++) {
        shared[i] = mx_kv_block_new(p);
        for (int t = 1; t < THREADS; t++)
            mx_kv_block_ref(shared[i]);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, worker, p), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    mx_kv_pool_bytes(p, &used, &idle);
    assert_int_equal(used, 0);
    assert_true(idle >= mx_kv_pool_block_bytes(p) && idle <= (uint64_t)32 << 20);
    mx_kv_pool_free(p);
    mx_device_close(d);
}

/* The free list is bounded: large blocks go back to the system. */
static void test_bound(void **state)
{
    (void)state;
    enum { BLOCKS = 40 };
    struct mx_kv_layout large = layout;
    struct mx_kv_block *b[BLOCKS];
    struct mx_device *d = mx_device_open("ref", 1, NULL);
    uint64_t used, idle;
    large.head_dim = 8192; /* 2 MiB */
    struct mx_kv_pool *p = mx_kv_pool_new(d, &large);
    size_t bytes = mx_kv_pool_block_bytes(p);
    for (int i = 0; i < BLOCKS; i++)
        assert_non_null(b[i] = mx_kv_block_new(p));
    mx_kv_pool_bytes(p, &used, &idle);
    assert_true(used == BLOCKS * bytes && idle == 0);
    for (int i = 0; i < BLOCKS; i++)
        mx_kv_block_unref(b[i]);
    mx_kv_pool_bytes(p, &used, &idle);
    assert_true(used == 0 && idle == (uint64_t)32 << 20);
    struct mx_kv_block *again = mx_kv_block_new(p);
    mx_kv_pool_bytes(p, &used, &idle);
    assert_true(used == bytes && idle == ((uint64_t)32 << 20) - bytes);
    mx_kv_block_unref(again);
    mx_kv_block_unref(NULL);
    mx_kv_pool_free(p);
    mx_kv_pool_free(NULL);
    mx_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads),
                                       cmocka_unit_test(test_bound)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
