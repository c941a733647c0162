/* The draft vocabulary: which tokens are chosen, the gather of their rows for every kind of weight,
 * and the sampler over part of a vocabulary. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "device/common.h"
#include "runtime/draft_vocab.h"
#include "runtime/misses.h"
#include "runtime/sampler.h"

/* ---- Choice ------------------------------------------------------------------------------- */

/* Ids: bytes a..d 0..3, unmerged "xy" 4, merges in the order 8, 6, 7, 5, added 9 and 10; 11 is a
 * hole and 12 onwards no token at all. */
static const char json[] =
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"xy\":4,\"cd\":5,"
    "\"bc\":6,\"abc\":7,\"ab\":8},\"merges\":[\"a b\",\"b c\",\"ab c\",\"c d\"]},"
    "\"added_tokens\":[{\"id\":9,\"content\":\"<think>\",\"special\":false},"
    "{\"id\":10,\"content\":\"<end>\",\"special\":true}],\"decoder\":{\"type\":\"ByteLevel\"}}";

enum { VOCAB = 16 };

static struct mx_tokenizer *tokenizer(void)
{
    mtplx_error err = {0};
    struct mx_tokenizer *t = mx_tokenizer_parse(json, sizeof json - 1, "t.json", &err);
    if (!t)
        fail_msg("%s", err.message);
    return t;
}

static void check_choice(const struct mx_draft_tokens *from, int want, int n, const int32_t *ids)
{
    int32_t *have;
    int count;
    assert_int_equal(mx_draft_vocab_choose(from, want, &have, &count, NULL), MTPLX_OK);
    assert_int_equal(count, n);
    assert_true((have == NULL) == (ids == NULL));
    for (int i = 0; have && i < n; i++)
        assert_int_equal(have[i], ids[i]);
    free(have);
}

#define CHOICE(from, want, ...)                                                                    \
    check_choice(from, want, (int)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)),            \
                 (int32_t[]){__VA_ARGS__})

static void sizes_follow_the_option(void **state)
{
    (void)state;
    assert_int_equal(mx_draft_vocab_size(248320, 0), MX_DRAFT_VOCAB);
    assert_int_equal(mx_draft_vocab_size(8192, 0), 8192);
    assert_int_equal(mx_draft_vocab_size(248320, -1), 248320);
    assert_int_equal(mx_draft_vocab_size(248320, 1000), 1000);
    assert_int_equal(mx_draft_vocab_size(320, 1000), 320);
}

static void merges_are_taken_in_their_order(void **state)
{
    (void)state;
    struct mx_tokenizer *t = tokenizer();
    struct mx_draft_tokens from = {.vocab = VOCAB, .tokenizer = t};
    CHOICE(&from, 1, 0, 1, 2, 3, 9, 10); /* bytes and added tokens are always in */
    CHOICE(&from, 6, 0, 1, 2, 3, 9, 10);
    CHOICE(&from, 7, 0, 1, 2, 3, 8, 9, 10);
    CHOICE(&from, 8, 0, 1, 2, 3, 6, 8, 9, 10);
    CHOICE(&from, 9, 0, 1, 2, 3, 6, 7, 8, 9, 10);
    CHOICE(&from, 10, 0, 1, 2, 3, 5, 6, 7, 8, 9, 10);
    CHOICE(&from, 11, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10);
    CHOICE(&from, 12, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11);
    check_choice(&from, VOCAB, VOCAB, NULL);
    check_choice(&from, VOCAB + 5, VOCAB, NULL);
    mx_tokenizer_free(t);
}

static void stops_and_observed_tokens_come_first(void **state)
{
    (void)state;
    struct mx_tokenizer *t = tokenizer();
    const int32_t stops[] = {5, -7, 15, 1 << 30, 5};
    const int32_t observed[] = {4, -1, INT32_MAX, 7, VOCAB, 4, 3};
    struct mx_draft_tokens from = {.vocab = VOCAB,
                                   .tokenizer = t,
                                   .stops = stops,
                                   .n_stops = 5,
                                   .observed = observed,
                                   .n_observed = 7};
    CHOICE(&from, 2, 0, 1, 2, 3, 5, 9, 10, 15);
    CHOICE(&from, 9, 0, 1, 2, 3, 4, 5, 9, 10, 15);
    CHOICE(&from, 10, 0, 1, 2, 3, 4, 5, 7, 9, 10, 15);
    CHOICE(&from, 11, 0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 15);
    mx_tokenizer_free(t);
}

static void without_a_tokenizer_low_ids_are_taken(void **state)
{
    (void)state;
    const int32_t stops[] = {9};
    struct mx_draft_tokens from = {.vocab = VOCAB, .stops = stops, .n_stops = 1};
    CHOICE(&from, 1, 9);
    CHOICE(&from, 4, 0, 1, 2, 9);
    check_choice(&(struct mx_draft_tokens){.vocab = 1}, 1, 1, NULL);
}

/* A tokenizer that is larger than the model, and one whose tokens are all required. */
static void odd_tokenizers_are_bounded(void **state)
{
    (void)state;
    struct mx_tokenizer *t = tokenizer();
    struct mx_draft_tokens from = {.vocab = 7, .tokenizer = t};
    CHOICE(&from, 5, 0, 1, 2, 3, 6);
    from.vocab = 4;
    check_choice(&from, 1, 4, NULL);
    mx_tokenizer_free(t);
}

/* ---- Misses ------------------------------------------------------------------------------- */

static void check_ranked(struct mx_misses *m, size_t n, const int32_t *want)
{
    size_t have;
    const int32_t *ids = mx_misses_ranked(m, &have);
    assert_int_equal(have, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids[i], want[i]);
}

static void misses_are_counted_and_come_back(void **state)
{
    (void)state;
    const int32_t known[] = {1, 4, 9};
    struct mx_misses *m = mx_misses_new(NULL, 100);
    mx_misses_note(m, 50); /* nothing is watched yet */
    mx_misses_watch(m, known, 3);
    assert_false(mx_misses_grown(m));
    const int32_t tokens[] = {4, 1, 9, 50, -1, 100, INT32_MAX, 7, 7, 99, 0, 0, 7};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        mx_misses_note(m, tokens[i]);
    assert_true(mx_misses_grown(m));
    check_ranked(m, 4, (int32_t[]){7, 0, 50, 99});

    json_t *saved = mx_misses_json(m);
    mx_misses_free(m);
    m = mx_misses_new(saved, 99); /* a smaller vocabulary than was saved */
    json_decref(saved);
    mx_misses_watch(m, known, 3);
    check_ranked(m, 3, (int32_t[]){7, 0, 50});
    mx_misses_note(m, 50);
    mx_misses_note(m, 50);
    check_ranked(m, 3, (int32_t[]){7, 50, 0});
    mx_misses_free(m);
    mx_misses_note(NULL, 1);
    mx_misses_watch(NULL, NULL, 0);
    mx_misses_free(NULL);
    assert_false(mx_misses_grown(NULL));
}

static void full_records_age(void **state)
{
    (void)state;
    const int32_t known[] = {0};
    size_t n;
    struct mx_misses *m = mx_misses_new(NULL, 1 << 20);
    mx_misses_watch(m, known, 1);
    for (int32_t i = 1; i <= MX_MISSES_MAX; i++) {
        mx_misses_note(m, i);
        if (i % 2)
            mx_misses_note(m, i);
    }
    mx_misses_ranked(m, &n);
    assert_int_equal(n, MX_MISSES_MAX);
    mx_misses_note(m, 1 << 19); /* the tokens counted once go */
    mx_misses_ranked(m, &n);
    assert_int_equal(n, MX_MISSES_MAX / 2 + 1);
    for (int32_t i = 0; i < 100000; i++)
        mx_misses_note(m, i * 7);
    mx_misses_ranked(m, &n);
    assert_true(n <= MX_MISSES_MAX);
    mx_misses_free(m);
}

static void unsound_records_are_ignored(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{}",
        "{\"tokens\":5,\"counts\":{}}",
        "{\"tokens\":[1,2],\"counts\":[]}",
        "{\"tokens\":[-1,16,9999999999,\"3\",null,2.5],\"counts\":[1,1,1,1,1,1]}",
        "{\"tokens\":[1,2,3],\"counts\":[0,-4,4294967296]}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *v = json_loads(texts[i], 0, NULL);
        struct mx_misses *m = mx_misses_new(v, 16);
        assert_non_null(v);
        check_ranked(m, 0, NULL);
        json_decref(v);
        mx_misses_free(m);
    }
    json_t *v = json_loads("{\"tokens\":[5,5,3],\"counts\":[4294967295,7,1]}", 0, NULL);
    struct mx_misses *m = mx_misses_new(v, 16);
    check_ranked(m, 2, (int32_t[]){5, 3});
    json_decref(v);
    mx_misses_free(m);
}

/* ---- Gather ------------------------------------------------------------------------------- */

enum { OUT = 40, IN = 64 };

static struct mx_loader loader(struct mx_weights *ws, const mtplx_load_options *o)
{
    struct mx_device *d = mx_device_open("ref", 1, NULL);
    assert_non_null(d);
    mx_weights_init(ws, d);
    return (struct mx_loader){.device = d, .options = o, .weights = ws};
}

static void loader_close(struct mx_loader *l)
{
    struct mx_device *d = l->device;
    mx_weights_free(l->weights);
    mx_device_close(d);
}

static void fill(uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(mx_rng_uniform(seed, i, MX_RNG_DRAFT) * 256);
}

/* A weight of random bytes; exponents stay small enough for finite numbers in every type. */
static struct mx_weight make_weight(enum mx_weight_kind kind, int bits, enum mx_dtype sdtype,
                                    uint8_t *data, uint8_t *scales, uint8_t *biases)
{
    struct mx_weight w = {.kind = kind, .out = OUT, .in = IN, .data = data};
    if (kind == MX_W_MLXQ) {
        w.scales = scales;
        w.biases = biases;
        w.sdtype = sdtype;
        w.bits = bits;
        w.group = 32;
    }
    for (size_t i = 3; kind == MX_W_F32 && i < (size_t)OUT * IN * 4; i += 4)
        data[i] = 0x3c;
    for (size_t i = 1; kind != MX_W_F32 && kind != MX_W_MLXQ && i < (size_t)OUT * IN * 2; i += 2)
        data[i] = 0x3c;
    size_t size = (size_t)mx_dtype_bytes(sdtype);
    for (size_t i = size - 1; i < (size_t)OUT * 2 * size; i += size)
        scales[i] = biases[i] = 0x3c;
    return w;
}

static const struct {
    enum mx_weight_kind kind;
    int bits;
    enum mx_dtype sdtype;
} kinds[] = {
    {MX_W_F32, 0, MX_F32},   {MX_W_F16, 0, MX_F32},   {MX_W_BF16, 0, MX_F32},
    {MX_W_MLXQ, 4, MX_F16},  {MX_W_MLXQ, 8, MX_BF16}, {MX_W_MLXQ, 3, MX_F32},
    {MX_W_MLXQ, 6, MX_BF16},
};

/* Buffers are of the exact size, so that a sanitizer sees a read beyond the last row. */
static void every_kind_gathers(void **state)
{
    (void)state;
    static const int32_t ids[] = {39, 0, 7, 7, 38};
    const mtplx_load_options o = {0};
    struct mx_weights ws;
    struct mx_loader l = loader(&ws, &o);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct mx_weight shape = {.kind = kinds[k].kind, .in = IN, .bits = kinds[k].bits}, got;
        size_t row = mx_weight_row_bytes(&shape), side = 2 * 4;
        uint8_t *data = malloc(OUT * row);
        uint8_t *scales = malloc(OUT * side), *biases = malloc(OUT * side);
        fill(data, OUT * row, k);
        fill(scales, OUT * side, k + 10);
        fill(biases, OUT * side, k + 20);
        struct mx_weight w =
            make_weight(kinds[k].kind, kinds[k].bits, kinds[k].sdtype, data, scales, biases);
        assert_int_equal(mx_load_rows(&l, &w, ids, 5, &got, NULL), MTPLX_OK);
        assert_int_equal(got.out, 5);
        assert_int_equal(got.in, IN);
        assert_null(got.bound);
        for (int i = 0; i < 5; i++) {
            float a[IN], b[IN];
            mx_weight_row(&w, ids[i], a);
            mx_weight_row(&got, i, b);
            assert_true(isfinite(a[5]));
            assert_memory_equal(a, b, sizeof a);
        }
        size_t sides = w.scales ? 2 * 2 * (size_t)mx_dtype_bytes(w.sdtype) : 0;
        assert_int_equal(mx_weight_bytes(&w, 5), 5 * (row + sides));
        free(data);
        free(scales);
        free(biases);
    }
    loader_close(&l);
}

static void check_head(mtplx_proj_quant quant, int draft_vocab, int n, bool own)
{
    const mtplx_load_options o = {.draft_vocab = draft_vocab, .draft_head_quant = quant};
    const int32_t stops[] = {33};
    struct mx_draft_tokens from = {.vocab = OUT, .stops = stops, .n_stops = 1};
    struct mx_weights ws;
    struct mx_loader l = loader(&ws, &o);
    struct mx_draft_vocab d;
    float *data = malloc(sizeof(float) * OUT * IN);
    for (int i = 0; i < OUT * IN; i++)
        data[i] = (float)mx_rng_uniform(3, (uint64_t)i, MX_RNG_DRAFT);
    struct mx_weight head = {.kind = MX_W_F32, .out = OUT, .in = IN, .data = data};
    assert_int_equal(mx_draft_vocab_load(&d, &l, &head, &from, NULL), MTPLX_OK);
    assert_int_equal(d.n, n);
    assert_int_equal(d.head.data != NULL, own);
    assert_int_equal(d.ids != NULL, n < OUT);
    for (int i = 0; own && i < n; i++) {
        float have[IN];
        int32_t id = d.ids ? d.ids[i] : i;
        mx_weight_row(&d.head, i, have);
        for (int j = 0; j < IN; j++) {
            float want = data[(size_t)id * IN + (size_t)j];
            assert_true(fabsf(have[j] - want) <= (quant == MTPLX_PROJ_Q4   ? 0.05f
                                                  : quant == MTPLX_PROJ_Q8 ? 0.004f
                                                                           : 0));
        }
    }
    /* The rows that were re-quantised are not kept beside the result. */
    size_t copies = own ? (quant == MTPLX_PROJ_KEEP ? 1 : 3) : 0;
    assert_int_equal(ws.n_host, copies + (d.ids != NULL));
    loader_close(&l);
    free(data);
}

static void heads_are_copied_as_asked(void **state)
{
    (void)state;
    check_head(MTPLX_PROJ_KEEP, 0, OUT, false);
    check_head(MTPLX_PROJ_KEEP, -1, OUT, false);
    check_head(MTPLX_PROJ_KEEP, 8, 8, true);
    check_head(MTPLX_PROJ_Q4, 8, 8, true);
    check_head(MTPLX_PROJ_Q8, -1, OUT, true);
    struct mx_draft_vocab d;
    assert_int_equal(
        mx_draft_vocab_load(&d, NULL, NULL, &(struct mx_draft_tokens){.vocab = 9}, NULL), MTPLX_OK);
    assert_int_equal(d.n, 9);
    assert_null(d.ids);
}

/* ---- Sampling ----------------------------------------------------------------------------- */

enum { FULL = 400, PART = 150 };

/* A row over part of a vocabulary is the full row with -inf elsewhere. */
static void check_part(mtplx_sampling cfg, uint64_t seed)
{
    struct mx_sampler *s = mx_sampler_new(FULL, NULL);
    struct mx_counts *c = mx_counts_new(NULL);
    struct mx_dist a = {0}, b = {0};
    float full[FULL], part[PART];
    int32_t ids[PART];
    assert_int_equal(mx_dist_reserve(&a, FULL, NULL), MTPLX_OK);
    assert_int_equal(mx_dist_reserve(&b, FULL, NULL), MTPLX_OK);
    for (int i = 0; i < FULL; i++)
        full[i] = -INFINITY;
    for (int i = 0; i < PART; i++) {
        ids[i] = i * 2 + (i > 70) * 17;
        part[i] = (float)floor(30 * mx_rng_uniform(seed, (uint64_t)i, MX_RNG_DRAFT)) / 4; /* ties */
        full[ids[i]] = part[i];
    }
    for (int i = 0; i < 90; i++)
        mx_counts_add(c, (int32_t)(mx_rng_uniform(seed, (uint64_t)i, MX_RNG_ACCEPT) * 450), i % 3,
                      NULL);
    mx_sample_dist(s, &cfg, c, full, FULL, &a);
    mx_sample_dist_of(s, &cfg, c, part, ids, PART, &b);
    assert_true(a.n > 0);
    for (int i = 0; i < FULL; i++)
        assert_true(fabs(mx_dist_prob(&a, i) - mx_dist_prob(&b, i)) < 1e-12);
    assert_int_equal(mx_sample_argmax(&cfg, c, full, FULL),
                     mx_sample_argmax_of(&cfg, c, part, ids, PART));
    assert_int_equal(mx_sample_argmax(&cfg, NULL, full, FULL),
                     mx_sample_argmax_of(&cfg, NULL, part, ids, PART));
    mx_dist_free(&a);
    mx_dist_free(&b);
    mx_counts_free(c);
    mx_sampler_free(s);
}

static void part_of_a_row_is_sampled_as_the_row(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++)
        for (int k = 0; k < 6; k++) {
            mtplx_sampling cfg = {.temperature = k == 5 ? 0 : 0.5 + k * 0.3,
                                  .top_p = k % 2 ? 0.9 : 1,
                                  .top_k = k == 2 ? 7 : 0,
                                  .min_p = k == 4 ? 0.05 : 0,
                                  .repetition_penalty = seed % 2 ? 1.3 : 1,
                                  .presence_penalty = seed % 3 ? 0.5 : 0};
            check_part(cfg, seed);
        }
}

/* Rows in which nothing can be drawn still give a token of the part. */
static void degenerate_parts_stay_inside(void **state)
{
    (void)state;
    const int32_t ids[] = {7, 20};
    const float rows[][2] = {{-INFINITY, -INFINITY}, {NAN, NAN}, {NAN, -INFINITY}};
    struct mx_sampler *s = mx_sampler_new(32, NULL);
    struct mx_dist d = {0};
    assert_int_equal(mx_dist_reserve(&d, 32, NULL), MTPLX_OK);
    for (int t = 0; t < 2; t++) {
        mtplx_sampling cfg = {.temperature = t, .top_p = 1, .repetition_penalty = 1};
        for (size_t i = 0; i < 3; i++) {
            mx_sample_dist_of(s, &cfg, NULL, rows[i], ids, 2, &d);
            assert_true(mx_dist_prob(&d, 7) == 1);
            assert_int_equal(mx_dist_draw(&d, 0.5), 7);
            assert_int_equal(mx_sample_argmax_of(&cfg, NULL, rows[i], ids, 2), 7);
        }
        mx_sample_dist_of(s, &cfg, NULL, (float[]){NAN, -1e30f}, ids, 2, &d);
        assert_true(mx_dist_prob(&d, 20) == 1);
    }
    mx_dist_free(&d);
    mx_sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_follow_the_option),
        cmocka_unit_test(merges_are_taken_in_their_order),
        cmocka_unit_test(stops_and_observed_tokens_come_first),
        cmocka_unit_test(without_a_tokenizer_low_ids_are_taken),
        cmocka_unit_test(odd_tokenizers_are_bounded),
        cmocka_unit_test(misses_are_counted_and_come_back),
        cmocka_unit_test(full_records_age),
        cmocka_unit_test(unsound_records_are_ignored),
        cmocka_unit_test(every_kind_gathers),
        cmocka_unit_test(heads_are_copied_as_asked),
        cmocka_unit_test(part_of_a_row_is_sampled_as_the_row),
        cmocka_unit_test(degenerate_parts_stay_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
