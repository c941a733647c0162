/* Time of grammar masks at a vocabulary of 248,000 tokens.
 *
 * usage: bench_grammar [MODEL_DIR] [VOCAB]
 * The tokenizer of MODEL_DIR (default models/nano) is filled up with made-up tokens that are shaped
 * like those of a large vocabulary: words with a blank in front, words of two languages, runs of
 * blanks, punctuation, quotes and brackets glued together. Random walks through several schemas
 * take the time of every mask: `cold` with a fresh grammar for each walk, `warm` with a grammar
 * that other walks have used before. */
#include "base/strbuf.h"
#include "text/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WALKS 12
#define STEPS 400

static const struct {
    const char *name, *text;
} schemas[] = {
    {"any JSON", "true"},
    {"weather call", "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"unit\":"
                     "{\"enum\":[\"celsius\",\"fahrenheit\"]},\"days\":{\"type\":\"integer\","
                     "\"minimum\":1,\"maximum\":14}},\"required\":[\"city\",\"unit\",\"days\"],"
                     "\"additionalProperties\":false}"},
    {"records",
     "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"id\":{\"type\":"
     "\"integer\"},\"name\":{\"type\":\"string\",\"maxLength\":60},\"score\":{\"type\":"
     "\"number\"},\"when\":{\"type\":\"string\",\"format\":\"date-time\"},\"tags\":{"
     "\"type\":\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":5}},\"required\":["
     "\"id\",\"name\",\"score\",\"when\",\"tags\"]}}"},
    {"tree",
     "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"label\":"
     "{\"type\":\"string\"},\"kids\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}},"
     "\"required\":[\"label\",\"kids\"],\"additionalProperties\":false}}}"},
    {"open map", "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"string\",\"pattern\":"
                 "\"^[A-Z]{2}-\\\\d+$\"}},\"required\":[\"id\"],\"additionalProperties\":{\"type\":"
                 "\"string\"}}"},
};

/* Time of this thread: what others do on the machine does not count. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint32_t next(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33);
}

/* ---- Vocabulary ---- */

static void word(struct mx_strbuf *t, uint64_t *seed)
{
    static const char *const syllables[] = {"an", "ber", "co", "de",   "ex", "fi",  "ger", "hol",
                                            "in", "jo",  "ka", "li",   "me", "nor", "ou",  "pre",
                                            "qu", "ri",  "st", "tion", "un", "ver", "wi",  "z"};
    static const char *const letters[] = {"\xd0\xb0",     "\xd0\xb5",     "\xd0\xbd",
                                          "\xd0\xbe",     "\xe4\xb8\xad", "\xe6\x96\x87",
                                          "\xe3\x81\xae", "\xc3\xa9"};
    bool foreign = next(seed) % 4 == 0;
    for (uint32_t i = 0, n = 1 + next(seed) % 4; i < n; i++)
        mx_strbuf_puts(t, foreign ? letters[next(seed) % 8] : syllables[next(seed) % 24]);
}

static void made_up(struct mx_strbuf *t, uint64_t *seed)
{
    static const char marks[] = "\"\"\"\\:;,.{}[]()<>=-_/*'#@!?|&\n\t ";
    mx_strbuf_clear(t);
    uint32_t kind = next(seed) % 100;
    if (kind < 55)
        mx_strbuf_putc(t, ' ');
    if (kind < 93)
        word(t, seed);
    if (kind >= 88)
        for (uint32_t i = 0, n = 1 + next(seed) % 4; i < n; i++)
            mx_strbuf_putc(t, marks[next(seed) % (sizeof marks - 1)]);
    if (kind >= 98)
        word(t, seed);
}

/* The tokenizer with tokens added as ordinary (not special) added tokens. */
static struct mx_tokenizer *large_tokenizer(const char *dir, int vocab, mtplx_error *err)
{
    struct mx_strbuf path, t;
    mx_strbuf_init(&path, 0);
    mx_strbuf_init(&t, 0);
    mx_strbuf_printf(&path, "%s/tokenizer.json", dir);
    json_t *root = json_load_file(path.data, 0, NULL), *seen = json_object();
    json_t *added = json_object_get(root, "added_tokens");
    json_t *known = json_object_get(json_object_get(root, "model"), "vocab");
    int id = (int)(json_array_size(added) + json_object_size(known));
    uint64_t seed = 1;
    while (root && id < vocab) {
        made_up(&t, &seed);
        json_t *one = t.len ? json_pack("{s:i,s:s,s:b,s:b,s:b,s:b,s:b}", "id", id, "content",
                                        t.data, "special", 0, "single_word", 0, "lstrip", 0,
                                        "rstrip", 0, "normalized", 0)
                            : NULL;
        if (!one || json_object_get(seen, t.data) || json_object_get(known, t.data)) {
            json_decref(one);
            mx_strbuf_printf(&t, "%u", next(&seed));
            continue;
        }
        json_object_set_new(seen, t.data, json_true());
        json_array_append_new(added, one);
        id++;
    }
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    struct mx_tokenizer *out = text ? mx_tokenizer_parse(text, strlen(text), path.data, err) : NULL;
    if (!text)
        mx_error(err, MTPLX_ERR_IO, "%s cannot be read", path.data);
    free(text);
    json_decref(root);
    json_decref(seen);
    mx_strbuf_free(&path);
    mx_strbuf_free(&t);
    return out;
}

/* ---- Walks ---- */

struct times {
    double *v;
    size_t n, cap;
};

static bool record(struct times *t, uint64_t ns)
{
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 1024;
        double *v = realloc(t->v, cap * sizeof *v);
        if (!v)
            return false;
        t->v = v;
        t->cap = cap;
    }
    t->v[t->n++] = (double)ns * 1e-3;
    return true;
}

static bool allowed(const uint64_t *mask, int32_t id)
{
    return !mask || (mask[id / 64] >> (id % 64) & 1);
}

/* Often a token that closes something, else any. */
static int32_t pick(const struct mx_tokenizer *t, const uint64_t *mask, int vocab, uint64_t *seed)
{
    static const char *const closers[] = {"\"", "\",", "}", "]", ",", ":"};
    int32_t at = (int32_t)(next(seed) % (uint32_t)vocab);
    if (next(seed) % 5 == 0)
        for (int i = 0; i < 6; i++) {
            int32_t id = mx_tokenizer_find(t, closers[i]);
            if (id >= 0 && allowed(mask, id))
                return id;
        }
    for (int i = 0; i < vocab; i++, at = (at + 1) % vocab)
        if (allowed(mask, at))
            return at;
    return -1;
}

static void walk(struct mx_grammar *g, const struct mx_tokenizer *t,
                 const struct mx_token_table *table, int vocab, int32_t stop, uint64_t seed,
                 struct times *times)
{
    struct mx_matcher *m = mx_matcher_new(g, table, NULL);
    for (int i = 0; m && i < STEPS; i++) {
        uint64_t start = cpu_ns();
        const uint64_t *mask = mx_matcher_mask(m);
        record(times, cpu_ns() - start);
        int32_t id = pick(t, mask, vocab, &seed);
        if (id < 0 || id == stop || !mx_matcher_accept(m, id))
            break;
    }
    mx_matcher_free(m);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *name, const char *what, struct times *t)
{
    if (t->n == 0)
        return;
    qsort(t->v, t->n, sizeof *t->v, by_value);
    size_t under = 0;
    while (under < t->n && t->v[under] < 50)
        under++;
    printf("%-14s %-5s %6zu masks  median %8.1f  p90 %8.1f  p99 %8.1f  max %8.1f us  %5.1f %% "
           "below 50 us\n",
           name, what, t->n, t->v[t->n / 2], t->v[t->n * 9 / 10], t->v[t->n * 99 / 100],
           t->v[t->n - 1], 100.0 * (double)under / (double)t->n);
    t->n = 0;
}

static bool measure(int index, const struct mx_tokenizer *t, const struct mx_token_table *table,
                    int vocab, int32_t stop, mtplx_error *err)
{
    json_t *schema = json_loads(schemas[index].text, JSON_DECODE_ANY, NULL);
    struct times times = {0};
    struct mx_grammar *g = NULL;
    for (uint64_t i = 0; i < WALKS; i++) {
        mx_grammar_unref(g);
        g = mx_grammar_from_schema(schema, NULL, err);
        if (!g)
            break;
        walk(g, t, table, vocab, stop, i, &times);
    }
    report(schemas[index].name, "cold", &times);
    for (uint64_t i = 0; i < 2 * WALKS && g; i++) {
        if (i == WALKS)
            times.n = 0;
        walk(g, t, table, vocab, stop, 100 + i, &times);
    }
    report(schemas[index].name, "warm", &times);
    bool ok = g != NULL;
    mx_grammar_unref(g);
    json_decref(schema);
    free(times.v);
    return ok;
}

/* A schema of about 50 KB. */
static void measure_compile(void)
{
    json_t *root = json_pack("{s:s,s:{}}", "type", "object", "properties");
    char name[64];
    for (int i = 0; i < 400; i++) {
        snprintf(name, sizeof name, "property_number_%d", i);
        json_object_set_new(json_object_get(root, "properties"), name,
                            json_pack("{s:s,s:{s:{s:s},s:{s:s,s:i}}}", "type", "object",
                                      "properties", "a", "type", "string", "b", "type", "integer",
                                      "minimum", i));
    }
    char *text = json_dumps(root, JSON_COMPACT);
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        uint64_t start = cpu_ns();
        mx_grammar_unref(mx_grammar_from_schema(root, NULL, NULL));
        double ms = (double)(cpu_ns() - start) * 1e-6;
        best = ms < best ? ms : best;
    }
    printf("compile a schema of %.1f KB: %.1f ms\n", text ? (double)strlen(text) * 1e-3 : 0, best);
    free(text);
    json_decref(root);
}

int main(int argc, char **argv)
{
    int vocab = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 248000;
    mtplx_error err = {0};
    struct mx_tokenizer *t = large_tokenizer(argc > 1 ? argv[1] : "models/nano", vocab, &err);
    int32_t stop = t ? mx_tokenizer_find(t, "<|im_end|>") : -1;
    uint64_t start = cpu_ns();
    struct mx_token_table *table = t ? mx_token_table_new(t, vocab, &stop, 1, &err) : NULL;
    bool ok = table != NULL;
    if (ok)
        printf("%d tokens, table built in %.1f ms\n", mx_tokenizer_size(t),
               (double)(cpu_ns() - start) * 1e-6);
    for (int i = 0; ok && i < (int)(sizeof schemas / sizeof *schemas); i++)
        ok = measure(i, t, table, vocab, stop, &err);
    if (ok)
        measure_compile();
    else
        fprintf(stderr, "bench_grammar: %s\n", err.message);
    mx_token_table_free(table);
    mx_tokenizer_free(t);
    return ok ? 0 : 1;
}
