/* The session bank used by several threads at once: nothing is lost, freed twice or counted wrong.
 * Runs under ThreadSanitizer as well (make tsan). */
#include "unit/bank_rig.h"

#include <stdio.h>

#define THREADS 4
#define STEPS 600

struct worker {
    struct rig *rig;
    uint64_t seed;
    pthread_t thread;
};

static size_t prompt_of(uint64_t seed, int32_t *t)
{
    uint32_t family = rig_pick(seed, 6);
    size_t n = 2 + rig_pick(seed + 1, 400), turn = rig_pick(seed + 2, 400);
    for (size_t i = 0; i < n; i++)
        t[i] = (int32_t)(i < turn ? family : 10 + family + rig_pick(seed + 3, 3));
    return n;
}

static void step(struct worker *w, uint64_t seed)
{
    struct mx_bank *b = w->rig->bank;
    struct mx_bank_stats st;
    struct mx_bank_view views[4];
    struct mx_bank_hit hit;
    int32_t t[LONGEST];
    char session[16];
    size_t n = prompt_of(seed, t);
    snprintf(session, sizeof session, "s%u", rig_pick(seed + 4, 5));
    switch (rig_pick(seed + 5, 16)) {
    case 0: mx_bank_tick(b); break;
    case 1: mx_bank_shrink(b, 20000 + rig_pick(seed + 6, 60000)); break;
    case 2: mx_bank_drop(b, session, 0, true); break;
    case 3: mx_bank_pin(b, session, rig_pick(seed + 6, 2)); break;
    case 4: mx_bank_get_stats(b, &st); break;
    case 5: mx_bank_list(b, views, 4); break;
    case 6:
    case 7:
    case 8:
    case 9:
    case 10: rig_put(w->rig, t, n, (enum mx_point)rig_pick(seed + 6, 5), "", session); break;
    default:
        mx_bank_find(b, "", session, t, n, &hit);
        if (hit.snapshot && memcmp(hit.snapshot->tokens, t, hit.snapshot->n * sizeof *t) != 0)
            abort();
        mx_snapshot_unref(hit.snapshot);
    }
}

static void *work(void *arg)
{
    struct worker *w = arg;
    for (uint64_t i = 0; i < STEPS; i++) {
        step(w, w->seed + i * 16);
        rig_time += 1000000;
    }
    return NULL;
}

static void test_together(void **state)
{
    struct rig r;
    struct worker w[THREADS];
    (void)state;
    rig_open(&r, (struct mx_bank_options){.budget = 100000, .ttl_ns = 500000000}, true);
    for (int i = 0; i < THREADS; i++) {
        w[i] = (struct worker){.rig = &r, .seed = (uint64_t)i << 32};
        assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(w[i].thread, NULL);
    rig_recount(&r);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_together)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
