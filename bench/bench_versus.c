/* The parts of bench/vs_llamacpp that a shell cannot do well.
 *
 *   bench_versus serve MODEL THREADS TOKENS PROMPT
 *       Loads the model, prints the prompt (PROMPT consecutive token ids) as a JSON array, then
 *       answers commands from standard input, one line each:
 *         decode DEPTH FILE   greedy decoding: tokens per second, drafts, accepted drafts; the
 *                             tokens go to FILE as {"tokens": [...]}
 *         rows N last|all     rows per second of an N-row pass, head on the last row, or verifying
 *                             with the head on all
 *         prefill N           prompt tokens per second
 *         streams N DEPTH     tokens per second of N streams together, prefill included
 *   bench_versus get FILE KEY...
 *       The value at a path of object keys and array indices in a JSON file.
 *   bench_versus same FILE FILE
 *       How many leading tokens two files of {"tokens": [...]} share, and the shorter length.
 *   bench_versus report SAMPLES [JSON]
 *       A table, and a JSON file, of the medians of "NAME peer|ours ROUND VALUE" lines; lines
 *       "# KEY TEXT" describe the run.
 */
#include "base/clock.h"
#include "base/file.h"
#include "base/strbuf.h"
#include "mtplx.h"
#include "tools/bench.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 64, MAX_STREAMS = 16 };

__attribute__((noreturn)) static void die(const char *what, const char *why)
{
    fprintf(stderr, "bench_versus: %s: %s\n", what, why);
    exit(1);
}

static int to_int(const char *text, int low, int high)
{
    char *end;
    long v = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || v < low || v > high)
        die(text, "is not a number in the allowed range");
    return (int)v;
}

/* ---- Serving measurements ---------------------------------------------------------------------
 */

struct side {
    mtplx_model *model;
    int32_t *prompt;
    int n_prompt, tokens;
    mtplx_error err;
};

static void must(const struct side *s, mtplx_status status, const char *what)
{
    if (status != MTPLX_OK)
        die(what, s->err.message);
}

static mtplx_seq *new_seq(struct side *s)
{
    mtplx_seq *seq = mtplx_seq_new(s->model, &s->err);
    if (!seq)
        die("sequence", s->err.message);
    return seq;
}

#define AUTO (-1) /* the depth that the default policy chooses */

static mtplx_gen *new_gen(struct side *s, mtplx_seq *seq, int depth)
{
    mtplx_gen_options o = {.depth = depth, .max_tokens = s->tokens, .ignore_stop = true};
    if (depth == AUTO) {
        o.depth = MTPLX_MAX_DEPTH;
        o.policy = MTPLX_DEPTH_AUTO;
    }
    mtplx_gen *g = mtplx_gen_new(seq, s->prompt, (size_t)s->n_prompt, &o, &s->err);
    if (!g)
        die("generation", s->err.message);
    return g;
}

static void write_tokens(struct side *s, const mtplx_gen *g, const char *path)
{
    size_t n;
    const int32_t *ids = mtplx_gen_tokens(g, &n);
    struct mx_strbuf b;
    mx_strbuf_init(&b, 0);
    mx_strbuf_puts(&b, "{\"tokens\": [");
    for (size_t i = 0; i < n; i++)
        mx_strbuf_printf(&b, "%s%d", i ? "," : "", (int)ids[i]);
    mx_strbuf_puts(&b, "]}\n");
    must(s, mx_file_write(path, b.data, b.len, &s->err), path);
    mx_strbuf_free(&b);
}

static void decode(struct side *s, int depth, const char *path)
{
    mtplx_seq *seq = new_seq(s);
    mtplx_gen *g = new_gen(s, seq, depth);
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        must(s, mtplx_gen_step(g, &s->err), "decode");
    const mtplx_gen_stats *st = mtplx_gen_get_stats(g);
    uint64_t drafted = 0, accepted = 0;
    for (int i = 0; i < MTPLX_MAX_DEPTH; i++) {
        drafted += st->drafted[i];
        accepted += st->accepted[i];
    }
    printf("%.3f %llu %llu\n", (double)(st->generated_tokens - 1) * 1e9 / (double)st->decode_ns,
           (unsigned long long)drafted, (unsigned long long)accepted);
    write_tokens(s, g, path);
    mtplx_gen_free(g);
    mtplx_seq_free(seq);
}

/* Passes on an empty sequence, as llama-bench does them: one that is not timed, then the mean of
 * three. With the head on all rows it is a verify pass; otherwise one that commits, which also
 * extends the MTP head's cache. */
static void time_rows(struct side *s, int n, bool all)
{
    enum { REPEATS = 3 };
    mtplx_row rows[MAX_ROWS];
    uint64_t spent = 0;
    for (int run = 0; run <= REPEATS; run++) {
        mtplx_seq *seq = new_seq(s);
        for (int i = 0; i < n; i++)
            rows[i] = (mtplx_row){
                .seq = seq, .token = s->prompt[i % s->n_prompt], .want_logits = all || i == n - 1};
        mtplx_forward_result result;
        mtplx_forward_mode mode = all ? MTPLX_VERIFY : MTPLX_COMMIT;
        uint64_t begin = mx_now_ns();
        must(s, mtplx_forward(s->model, rows, (size_t)n, mode, false, &result, &s->err), "rows");
        spent += run > 0 ? mx_now_ns() - begin : 0;
        mtplx_seq_free(seq);
    }
    printf("%.3f\n", n * (double)REPEATS * 1e9 / (double)spent);
}

static void prefill(struct side *s, int n)
{
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    mtplx_gen_options o = {.max_tokens = 1, .ignore_stop = true};
    mtplx_seq *seq = new_seq(s);
    for (int i = 0; i < n && ids; i++)
        ids[i] = s->prompt[i % s->n_prompt];
    mtplx_gen *g = ids ? mtplx_gen_new(seq, ids, (size_t)n, &o, &s->err) : NULL;
    if (!g)
        die("prefill", s->err.message);
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        must(s, mtplx_gen_step(g, &s->err), "prefill");
    printf("%.3f\n", n * 1e9 / (double)mtplx_gen_get_stats(g)->prefill_ns);
    mtplx_gen_free(g);
    mtplx_seq_free(seq);
    free(ids);
}

static void streams(struct side *s, int n, int depth)
{
    mtplx_seq *seqs[MAX_STREAMS];
    mtplx_gen *gens[MAX_STREAMS];
    uint64_t begin = mx_now_ns();
    for (int i = 0; i < n; i++) {
        seqs[i] = new_seq(s);
        gens[i] = new_gen(s, seqs[i], depth);
    }
    for (bool running = true; running;) {
        must(s, mtplx_gen_step_many(gens, (size_t)n, &s->err), "streams");
        running = false;
        for (int i = 0; i < n; i++)
            running |= mtplx_gen_finish(gens[i]) == MTPLX_FINISH_NONE;
    }
    printf("%.3f\n", (double)n * s->tokens * 1e9 / (double)(mx_now_ns() - begin));
    for (int i = 0; i < n; i++) {
        mtplx_gen_free(gens[i]);
        mtplx_seq_free(seqs[i]);
    }
}

static int to_depth(const char *word)
{
    return strcmp(word, "auto") == 0 ? AUTO : to_int(word, 0, MTPLX_MAX_DEPTH);
}

static void obey(struct side *s, char *line)
{
    char word[16], a[512], b[4096];
    int n = sscanf(line, "%15s %511s %4095s", word, a, b);
    if (n == 3 && strcmp(word, "decode") == 0)
        decode(s, to_depth(a), b);
    else if (n == 3 && strcmp(word, "rows") == 0)
        time_rows(s, to_int(a, 1, strcmp(b, "all") == 0 ? MTPLX_MAX_DEPTH + 1 : MAX_ROWS),
                  strcmp(b, "all") == 0);
    else if (n == 2 && strcmp(word, "prefill") == 0)
        prefill(s, to_int(a, 1, 1 << 20));
    else if (n == 3 && strcmp(word, "streams") == 0)
        streams(s, to_int(a, 1, MAX_STREAMS), to_depth(b));
    else
        die(line, "is not a command");
}

static int serve(char **argv)
{
    struct side s = {.tokens = to_int(argv[2], 2, 1 << 20),
                     .n_prompt = to_int(argv[3], 1, 1 << 20)};
    mtplx_load_options o = {.threads = to_int(argv[1], 1, 1024)};
    s.model = mtplx_model_load(argv[0], &o, &s.err);
    if (!s.model)
        die("load", s.err.message);
    int vocab = mtplx_model_get_info(s.model)->vocab_size;
    s.prompt = calloc((size_t)s.n_prompt, sizeof *s.prompt);
    if (!s.prompt)
        die("prompt", "out of memory");
    for (int i = 0; i < s.n_prompt; i++) {
        s.prompt[i] = vocab / 8 + i % (vocab / 2);
        printf("%s%d", i ? "," : "[", (int)s.prompt[i]);
    }
    printf("]\n");
    fflush(stdout);
    char line[4800];
    while (fgets(line, sizeof line, stdin)) {
        obey(&s, line);
        fflush(stdout);
    }
    free(s.prompt);
    mtplx_model_free(s.model);
    return 0;
}

/* ---- JSON files -------------------------------------------------------------------------------
 */

static json_t *load_json(const char *path)
{
    json_error_t e;
    json_t *root = json_load_file(path, 0, &e);
    if (!root)
        die(path, e.text);
    return root;
}

static int get(int argc, char **argv)
{
    json_t *root = load_json(argv[0]), *v = root;
    for (int i = 1; i < argc && v; i++)
        v = json_is_array(v) ? json_array_get(v, (size_t)to_int(argv[i], 0, 1 << 20))
                             : json_object_get(v, argv[i]);
    if (json_is_number(v))
        printf("%.6g\n", json_number_value(v));
    else if (json_is_string(v))
        printf("%s\n", json_string_value(v));
    else
        die(argv[0], "has no number or string there");
    json_decref(root);
    return 0;
}

static int same(char **argv)
{
    json_t *a = load_json(argv[0]), *b = load_json(argv[1]);
    json_t *x = json_object_get(a, "tokens"), *y = json_object_get(b, "tokens");
    size_t n = json_array_size(x), shared = 0;
    n = json_array_size(y) < n ? json_array_size(y) : n;
    while (shared < n && json_integer_value(json_array_get(x, shared)) ==
                             json_integer_value(json_array_get(y, shared)))
        shared++;
    printf("%zu %zu\n", shared, n);
    json_decref(a);
    json_decref(b);
    return 0;
}

/* ---- Report -----------------------------------------------------------------------------------
 */

enum { PEER, OURS, MAX_NAMES = 64 };

struct quantity {
    char name[32];
    double value[2][MX_BENCH_ROUNDS]; /* by side and round; 0: none */
};

struct samples {
    struct quantity q[MAX_NAMES];
    int n;
    json_t *facts; /* {key: text} */
};

static struct quantity *quantity(struct samples *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->q[i].name, name) == 0)
            return &s->q[i];
    if (s->n == MAX_NAMES)
        die(name, "is one quantity too many");
    snprintf(s->q[s->n].name, sizeof s->q[s->n].name, "%.31s", name);
    return &s->q[s->n++];
}

/* "NAME SIDE ROUND VALUE"; false when it is not that. */
static bool read_sample(struct samples *s, char *line)
{
    char *word[4] = {line};
    for (int i = 1; i < 4; i++) {
        word[i] = strchr(word[i - 1], ' ');
        if (!word[i])
            return false;
        *word[i]++ = '\0';
    }
    char *end_round, *end_value;
    long round = strtol(word[2], &end_round, 10);
    double value = strtod(word[3], &end_value);
    bool ours = strcmp(word[1], "ours") == 0;
    if (*end_round || *end_value || round < 0 || round >= MX_BENCH_ROUNDS)
        return false;
    if (!ours && strcmp(word[1], "peer") != 0)
        return false;
    quantity(s, word[0])->value[ours ? OURS : PEER][round] = value;
    return true;
}

static void read_samples(struct samples *s, const char *path)
{
    char line[1024];
    FILE *f = fopen(path, "r");
    if (!f)
        die(path, "cannot be opened");
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *text = strncmp(line, "# ", 2) == 0 ? strchr(line + 2, ' ') : NULL;
        if (text) {
            *text = '\0';
            json_object_set_new(s->facts, line + 2, json_string(text + 1));
        } else if (!read_sample(s, line)) {
            die(line, "is not a sample");
        }
    }
    fclose(f);
}

static struct mx_bench_spread side_spread(const struct quantity *q, int side)
{
    double v[MX_BENCH_ROUNDS];
    int n = 0;
    for (int r = 0; r < MX_BENCH_ROUNDS; r++)
        if (q->value[side][r] > 0)
            v[n++] = q->value[side][r];
    return mx_bench_spread(v, n);
}

/* Ours over the peer's, within rounds. */
static struct mx_bench_spread ratio_spread(const struct quantity *q)
{
    double v[MX_BENCH_ROUNDS];
    int n = 0;
    for (int r = 0; r < MX_BENCH_ROUNDS; r++)
        if (q->value[PEER][r] > 0 && q->value[OURS][r] > 0)
            v[n++] = q->value[OURS][r] / q->value[PEER][r];
    return mx_bench_spread(v, n);
}

/* c(n) of a side for a quantity "<prefix>N": rates of whole passes, so n times rate(1) / rate(n).
 */
static double pass_cost(struct samples *s, const char *name, int side)
{
    char one[32];
    int digits = (int)strcspn(name, "0123456789");
    snprintf(one, sizeof one, "%.*s1", digits, name);
    double first = side_spread(quantity(s, one), side).median;
    double rate = side_spread(quantity(s, name), side).median;
    return rate > 0 ? (double)strtol(name + digits, NULL, 10) * first / rate : 0;
}

static bool is_pass(const char *name)
{
    return strncmp(name, "rows", 4) == 0 || strncmp(name, "verify", 6) == 0;
}

static void print_number(double v)
{
    if (v > 0)
        printf(" %9.2f", v);
    else
        printf(" %9s", "-");
}

static void print_row(struct samples *s, const struct quantity *q)
{
    struct mx_bench_spread ratio = ratio_spread(q);
    printf("%-12s", q->name);
    for (int side = PEER; side <= OURS; side++)
        print_number(side_spread(q, side).median);
    if (ratio.n > 0)
        printf("  %6.2f (%.2f-%.2f)", ratio.median, ratio.low, ratio.high);
    if (is_pass(q->name)) {
        printf("   c(n):");
        for (int side = PEER; side <= OURS; side++)
            print_number(pass_cost(s, q->name, side));
    }
    printf("\n");
}

/* The best median of each side among the quantities that start with `prefix`. */
static void print_best(struct samples *s, const char *prefix, const char *what)
{
    double best[2] = {0};
    const char *name[2] = {"", ""};
    for (int i = 0; i < s->n; i++)
        for (int side = PEER; side <= OURS; side++) {
            double v = side_spread(&s->q[i], side).median;
            if (strncmp(s->q[i].name, prefix, strlen(prefix)) == 0 && v > best[side]) {
                best[side] = v;
                name[side] = s->q[i].name;
            }
        }
    if (best[PEER] > 0 && best[OURS] > 0)
        printf("%s: %.2f (%s) and %.2f (%s): %.2f\n", what, best[PEER], name[PEER], best[OURS],
               name[OURS], best[OURS] / best[PEER]);
}

static json_t *spread_json(struct mx_bench_spread v)
{
    if (v.n == 0)
        return json_null();
    return json_pack("{s:f, s:f, s:f, s:i}", "median", v.median, "low", v.low, "high", v.high,
                     "rounds", v.n);
}

static void write_json(struct samples *s, const char *path)
{
    json_t *list = json_array();
    for (int i = 0; i < s->n; i++) {
        const struct quantity *q = &s->q[i];
        json_t *o = json_pack(
            "{s:s, s:o, s:o, s:o}", "name", q->name, "peer", spread_json(side_spread(q, PEER)),
            "ours", spread_json(side_spread(q, OURS)), "ratio", spread_json(ratio_spread(q)));
        if (is_pass(q->name)) {
            json_object_set_new(o, "peer_cost", json_real(pass_cost(s, q->name, PEER)));
            json_object_set_new(o, "our_cost", json_real(pass_cost(s, q->name, OURS)));
        }
        json_array_append_new(list, o);
    }
    json_t *root = json_pack("{s:O, s:o}", "run", s->facts, "quantities", list);
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    mtplx_error err = {0};
    if (!text || mx_file_write(path, text, strlen(text), &err) != MTPLX_OK)
        die(path, text ? err.message : "out of memory");
    free(text);
    json_decref(root);
}

static int report(const char *path, const char *json)
{
    struct samples *s = calloc(1, sizeof *s);
    if (!s || !(s->facts = json_object()))
        die("report", "out of memory");
    read_samples(s, path);
    const char *key;
    json_t *value;
    json_object_foreach(s->facts, key, value) printf("%-12s %s\n", key, json_string_value(value));
    printf("\n%-12s %9s %9s  ours / peer, within rounds\n", "per second", "llama.cpp", "mtplx");
    int n = s->n; /* pass_cost() may add empty quantities */
    for (int i = 0; i < n; i++)
        print_row(s, &s->q[i]);
    s->n = n;
    printf("\n");
    print_best(s, "mtp", "best of MTP decoding");
    print_best(s, "streams", "best of two streams");
    if (json)
        write_json(s, json);
    json_decref(s->facts);
    free(s);
    return 0;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "serve") == 0 && argc == 6)
        return serve(argv + 2);
    if (strcmp(mode, "get") == 0 && argc > 3)
        return get(argc - 2, argv + 2);
    if (strcmp(mode, "same") == 0 && argc == 4)
        return same(argv + 2);
    if (strcmp(mode, "report") == 0 && (argc == 3 || argc == 4))
        return report(argv[2], argc == 4 ? argv[3] : NULL);
    fprintf(stderr, "usage: bench_versus serve|get|same|report ... (see the head of its source)\n");
    return 2;
}
