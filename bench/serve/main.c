/* The server under load, from the outside.
 *
 *   serve load PORT PID [SECONDS [STREAMS]]   mixed streams with random disconnects: every complete
 *                                             answer must equal the one that the same request got
 *                                             alone; resident memory of PID is sampled
 *   serve scale PORT [ROUNDS [TOKENS]]        tokens per second of 1, 2, 4, 8 and 16 streams
 *   serve overhead PORT MODEL [ROUNDS]        one stream against a bare loop over the library
 *   serve ids PORT MODEL [ROUNDS]             scale and overhead with prompts of token ids, for
 * models without a chat template serve ttft PORT [ROUNDS]                  first token of a short
 * prompt that arrives while a prompt of 4,000 tokens is read
 *
 * The server is started beforehand: mtplx serve --model MODEL --port PORT --seed 1 --depth 3. */
#include "base/clock.h"
#include "base/rng.h"
#include "client.h"
#include "mtplx.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_STREAMS = 256, KINDS = 48, LONG_PROMPT = 4000 };

static const char *const topics[] = {
    "Write a Python function that sorts a list with bubble sort.",
    "Explain the core idea of native-MTP in 2 sentences",
    "Tell me a story.",
    "Count from 3 to 17.",
    "Extract name, age, city as JSON: Omar is 41 years old, lives in Vienna and works as a pilot.",
    "Tell me a fable.",
    "Write a C function that computes the greatest common divisor of two integers.",
    "List the months of the year.",
};
#define TOPICS (sizeof topics / sizeof *topics)

static void die(const char *what)
{
    fprintf(stderr, "serve: %s\n", what);
    exit(1);
}

/* ---- One streamed request ------------------------------------------------------------------ */

struct stream {
    int port;
    const char *body;
    bool ids;           /* completions of token ids */
    size_t break_after; /* bytes after which the client hangs up; 0: never */
    bool light; /* look at times and usage only: the client must not take the server's processor */
    /* Results. */
    size_t bytes;
    char *text; /* everything that was said, reasoning and calls included */
    size_t len, cap;
    char finish[24];
    long long completion, prompt;
    bool done, error;
    uint64_t sent_ns, first_ns, last_ns;
    struct sse sse;
};

static void add_text(struct stream *s, const char *t)
{
    size_t n = strlen(t);
    if (s->len + n + 1 > s->cap) {
        s->cap = 2 * (s->len + n + 1);
        s->text = realloc(s->text, s->cap);
        if (!s->text)
            die("out of memory");
    }
    memcpy(s->text + s->len, t, n + 1);
    s->len += n;
}

static void add_delta(struct stream *s, const json_t *delta)
{
    const char *keys[] = {"reasoning_content", "content"};
    json_t *call;
    size_t i;
    for (size_t k = 0; k < 2; k++) {
        const char *t = json_string_value(json_object_get(delta, keys[k]));
        if (t)
            add_text(s, t);
    }
    json_array_foreach(json_object_get(delta, "tool_calls"), i, call)
    {
        const json_t *f = json_object_get(call, "function");
        const char *name = json_string_value(json_object_get(f, "name"));
        const char *args = json_string_value(json_object_get(f, "arguments"));
        add_text(s, name ? name : "");
        add_text(s, args ? args : "");
    }
}

static void on_event(void *arg, const char *data)
{
    struct stream *s = arg;
    if (strcmp(data, "[DONE]") == 0) {
        s->done = true;
        return;
    }
    if (s->light && strstr(data, s->ids ? "\"text\":\"" : "\"content\":\"")) {
        s->last_ns = mx_now_ns();
        if (!s->first_ns)
            s->first_ns = s->last_ns;
        return;
    }
    json_t *o = json_loads(data, 0, NULL);
    const json_t *choice = json_array_get(json_object_get(o, "choices"), 0);
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    size_t before = s->len;
    if (!o || json_object_get(o, "error"))
        s->error = true;
    add_delta(s, json_object_get(choice, "delta"));
    if (finish)
        snprintf(s->finish, sizeof s->finish, "%s", finish);
    const json_t *usage = json_object_get(o, "usage");
    if (json_is_object(usage)) {
        s->completion = json_integer_value(json_object_get(usage, "completion_tokens"));
        s->prompt = json_integer_value(json_object_get(usage, "prompt_tokens"));
    }
    if (s->len > before) {
        s->last_ns = mx_now_ns();
        if (!s->first_ns)
            s->first_ns = s->last_ns;
    }
    json_decref(o);
}

static bool on_data(void *arg, const char *data, size_t n)
{
    struct stream *s = arg;
    s->bytes += n;
    sse_feed(&s->sse, data, n);
    return s->break_after == 0 || s->bytes < s->break_after;
}

/* HTTP status, or as client_post() says. */
static int run(struct stream *s)
{
    s->sse = (struct sse){.event = on_event, .arg = s};
    s->sent_ns = mx_now_ns();
    const char *path = s->ids ? "/v1/completions" : "/v1/chat/completions";
    int status = client_post(s->port, path, s->body, on_data, s);
    sse_free(&s->sse);
    return status;
}

static void reset(struct stream *s)
{
    free(s->text);
    *s = (struct stream){.port = s->port, .body = s->body};
}

/* ---- Requests ------------------------------------------------------------------------------ */

/* `seed` negative: drafting as the server sees fit; else depth 3, so that a sampled answer can be
 * had again. */
static char *chat_body(const char *prompt, int max_tokens, double temperature, int seed, bool more)
{
    json_t *o =
        json_pack("{s:s, s:[{s:s, s:s}], s:i, s:f, s:b, s:{s:b}}", "model", "any", "messages",
                  "role", "user", "content", prompt, "max_tokens", max_tokens, "temperature",
                  temperature, "stream", 1, "stream_options", "include_usage", 1);
    if (seed >= 0)
        json_object_update_new(o, json_pack("{s:i, s:i}", "seed", seed, "depth", 3));
    if (more) /* the longest answers only end at max_tokens */
        json_object_set_new(o, "logit_bias", json_pack("{s:i, s:i}", "8182", -100, "8180", -100));
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    if (!text)
        die("out of memory");
    return text;
}

/* 64 consecutive ids, as the programs without a tokenizer measure. */
static char *ids_body(int first, int max_tokens, bool fixed)
{
    json_t *ids = json_array();
    for (int i = 0; i < 64; i++)
        json_array_append_new(ids, json_integer(first + i));
    json_t *o = json_pack("{s:o, s:i, s:i, s:b, s:{s:b}, s:{s:i}}", "prompt", ids, "max_tokens",
                          max_tokens, "temperature", 0, "stream", 1, "stream_options",
                          "include_usage", 1, "logit_bias", "0", -1);
    if (fixed)
        json_object_update_new(o, json_pack("{s:i, s:s}", "depth", 3, "draft_policy", "fixed"));
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    if (!text)
        die("out of memory");
    return text;
}

/* `words` words of filler before the question. */
static char *long_prompt(int words, const char *question)
{
    static const char *const filler[] = {"river ", "lamp ", "green ", "stone ", "small ", "north "};
    char *p = malloc((size_t)words * 8 + strlen(question) + 1), *at = p;
    if (!p)
        die("out of memory");
    for (int i = 0; i < words; i++) {
        const char *w = filler[(size_t)(i * 7 + i / 5) % (sizeof filler / sizeof *filler)];
        memcpy(at, w, strlen(w));
        at += strlen(w);
    }
    memcpy(at, question, strlen(question) + 1);
    return p;
}

/* ---- load ---------------------------------------------------------------------------------- */

struct kind {
    char *body, *text;
    char finish[24];
    long long completion;
};

struct load {
    int port;
    uint64_t until;
    struct kind kinds[KINDS];
    pthread_mutex_t lock;
    unsigned complete, hung_up, refused, failed, different;
    unsigned long long tokens;
};

struct worker {
    struct load *load;
    int index;
};

static void make_kinds(struct load *l)
{
    for (int i = 0; i < KINDS; i++) {
        const char *topic = topics[(size_t)i % TOPICS];
        char *prompt = long_prompt(i % 5 == 4 ? 60 * i : i % 3 * 12, topic);
        l->kinds[i].body = chat_body(prompt, 8 << i % 6, i % 2 ? 0.9 : 0, 100 + i, i % 4 == 3);
        free(prompt);
        struct stream s = {.port = l->port, .body = l->kinds[i].body};
        if (run(&s) != 200 || !s.done || s.error)
            die("a request that runs alone failed");
        l->kinds[i].text = s.text;
        l->kinds[i].completion = s.completion;
        snprintf(l->kinds[i].finish, sizeof l->kinds[i].finish, "%s", s.finish);
    }
}

static void tally(struct load *l, const struct kind *k, const struct stream *s, int status)
{
    pthread_mutex_lock(&l->lock);
    if (status == -1) {
        l->hung_up++;
    } else if (status == 503 || status == 429) {
        l->refused++;
    } else if (status != 200 || !s->done || s->error) {
        l->failed++;
        fprintf(stderr, "failed: status %d, done %d, error %d\n", status, s->done, s->error);
    } else {
        bool same = strcmp(s->text ? s->text : "", k->text ? k->text : "") == 0 &&
                    strcmp(s->finish, k->finish) == 0 && s->completion == k->completion;
        l->complete++;
        l->tokens += (unsigned long long)s->completion;
        l->different += !same;
        if (!same)
            fprintf(stderr, "different (%s/%s, %lld/%lld tokens):\n--- alone\n%s\n--- now\n%s\n",
                    k->finish, s->finish, k->completion, s->completion, k->text, s->text);
    }
    pthread_mutex_unlock(&l->lock);
}

static void *work(void *arg)
{
    const struct worker *w = arg;
    struct load *l = w->load;
    for (uint64_t i = 0; mx_now_ns() < l->until; i++) {
        double u = mx_rng_uniform((uint64_t)w->index, i, MX_RNG_TARGET);
        double v = mx_rng_uniform((uint64_t)w->index, i, MX_RNG_DRAFT);
        const struct kind *k = &l->kinds[(int)(u * KINDS)];
        struct stream s = {.port = l->port, .body = k->body};
        if (v < 0.15)
            s.break_after = 1 + (size_t)(v * 20000);
        int status = run(&s);
        tally(l, k, &s, status);
        free(s.text);
        if (status == 503)
            usleep(20000);
    }
    return NULL;
}

static long rss_kib(int pid)
{
    char path[64], line[256];
    long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "VmRSS:", 6) == 0)
            kib = strtol(line + 6, NULL, 10);
    if (f)
        fclose(f);
    return kib;
}

static void watch(struct load *l, int pid, int seconds)
{
    for (int t = 0; mx_now_ns() < l->until; t++) {
        if (t % (seconds < 50 ? 5 : seconds / 10) == 0)
            printf("%4d s  RSS %6.1f MiB  %u complete, %u hung up, %u refused\n", t,
                   (double)rss_kib(pid) / 1024, l->complete, l->hung_up, l->refused);
        fflush(stdout);
        sleep(1);
    }
}

static int load(int port, int pid, int seconds, int streams)
{
    static struct load l;
    static struct worker workers[MAX_STREAMS];
    pthread_t threads[MAX_STREAMS];
    l.port = port;
    pthread_mutex_init(&l.lock, NULL);
    make_kinds(&l);
    printf("%d kinds of request ran alone; %d streams for %d s\n", KINDS, streams, seconds);
    uint64_t t0 = mx_now_ns();
    l.until = t0 + (uint64_t)seconds * 1000000000u;
    for (int i = 0; i < streams; i++) {
        workers[i] = (struct worker){&l, i};
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0)
            die("cannot start a thread");
    }
    watch(&l, pid, seconds);
    for (int i = 0; i < streams; i++)
        pthread_join(threads[i], NULL);
    double s = (double)(mx_now_ns() - t0) / 1e9;
    printf("%u complete, %u hung up, %u refused (503), %u failed, %u different from alone; %.0f "
           "tokens/s of complete answers; RSS %.1f MiB\n",
           l.complete, l.hung_up, l.refused, l.failed, l.different, (double)l.tokens / s,
           (double)rss_kib(pid) / 1024);
    return l.failed || l.different;
}

/* ---- scale --------------------------------------------------------------------------------- */

static void *run_thread(void *arg)
{
    struct stream *s = arg;
    if (run(s) != 200 || s->error)
        die("a stream failed");
    return NULL;
}

/* Tokens per second of n streams together, from the first token of the last that starts. */
static double together(int port, int n, int tokens, int round, bool ids)
{
    static struct stream s[MAX_STREAMS];
    pthread_t threads[MAX_STREAMS];
    char *bodies[MAX_STREAMS];
    uint64_t first = UINT64_MAX, last = 0;
    long long total = 0;
    for (int i = 0; i < n; i++) {
        const char *topic = topics[(size_t)(i + round) % TOPICS];
        bodies[i] =
            ids ? ids_body(1000 + 2000 * i, tokens, false) : chat_body(topic, tokens, 0, -1, true);
        s[i] = (struct stream){.port = port, .body = bodies[i], .ids = ids, .light = true};
        pthread_create(&threads[i], NULL, run_thread, &s[i]);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        first = s[i].first_ns < first ? s[i].first_ns : first;
        last = s[i].last_ns > last ? s[i].last_ns : last;
        total += s[i].completion;
        free(s[i].text);
        free(bodies[i]);
    }
    return (double)(total - n) * 1e9 / (double)(last - first);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static int scale(int port, int rounds, int tokens, bool ids)
{
    static const int counts[] = {1, 2, 4, 8, 16};
    static double rate[5][64], ratio[5][64];
    rounds = rounds > 64 ? 64 : rounds;
    for (int r = 0; r < rounds; r++)
        for (int c = 0; c < 5; c++) {
            /* One stream is averaged over the same prompts that the batch holds. */
            double sum = 0;
            for (int i = 0; c == 0 && i < 8; i++)
                sum += 1 / together(port, 1, tokens, i, ids);
            rate[c][r] = c == 0 ? 8 / sum : together(port, counts[c], tokens, r, ids);
            ratio[c][r] = rate[c][r] / rate[0][r];
        }
    for (int c = 0; c < 5; c++) {
        double m = median(rate[c], rounds), x = median(ratio[c], rounds);
        printf("%2d streams  %8.1f tok/s  %.2f x one  (%.2f-%.2f)\n", counts[c], m, x, ratio[c][0],
               ratio[c][rounds - 1]);
    }
    return 0;
}

/* ---- overhead ------------------------------------------------------------------------------ */

static int32_t *chat_ids(mtplx_model *m, const char *prompt, size_t *n)
{
    mtplx_error err = {0};
    size_t len;
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", prompt);
    char *json = json_dumps(messages, JSON_COMPACT);
    char *text = mtplx_chat_render(m, json, NULL, NULL, true, &len, &err);
    int32_t *ids = text ? mtplx_encode(m, text, len, false, n, &err) : NULL;
    if (!ids)
        die(err.message);
    mtplx_free(text);
    free(json);
    json_decref(messages);
    return ids;
}

static int32_t *plain_ids(int first, size_t *n)
{
    int32_t *ids = malloc(64 * sizeof *ids);
    if (!ids)
        die("out of memory");
    for (int i = 0; i < 64; i++)
        ids[i] = first + i;
    *n = 64;
    return ids;
}

/* Nanoseconds per token of a bare loop, from the first token to the last, with the options that the
 * server's request has: a seed fixes depth 3. */
static double bare(mtplx_model *m, const int32_t *ids, size_t n, int tokens, bool plain)
{
    mtplx_error err = {0};
    mtplx_logit_bias ban[] = {{8182, -100}, {8180, -100}}, nudge = {0, -1};
    mtplx_gen_options o = {.depth = 3,
                           .policy = MTPLX_DEPTH_FIXED,
                           .context_copy = true,
                           .max_tokens = tokens,
                           .logit_bias = plain ? &nudge : ban,
                           .n_logit_bias = plain ? 1 : 2};
    mtplx_seq *s = mtplx_seq_new(m, &err);
    mtplx_gen *g = s ? mtplx_gen_new(s, ids, n, &o, &err) : NULL;
    if (!g)
        die(err.message);
    while (mtplx_gen_finish(g) == MTPLX_FINISH_NONE)
        if (mtplx_gen_step(g, &err) != MTPLX_OK)
            die(err.message);
    const mtplx_gen_stats *st = mtplx_gen_get_stats(g);
    double ns = (double)st->decode_ns / (double)(st->generated_tokens - 1);
    mtplx_gen_free(g);
    mtplx_seq_free(s);
    return ns;
}

static double served(int port, char *body, bool ids)
{
    struct stream s = {.port = port, .body = body, .ids = ids, .light = true};
    if (run(&s) != 200 || s.error || s.completion < 2)
        die("a stream failed");
    double ns = (double)(s.last_ns - s.first_ns) / (double)(s.completion - 1);
    reset(&s);
    free(body);
    return ns;
}

static int overhead(int port, const char *path, int rounds, bool ids)
{
    enum { TOKENS = 256 };
    mtplx_error err = {0};
    mtplx_load_options load = {0};
    static double ratio[512];
    int n = 0;
    mtplx_model *m = mtplx_model_load(path, &load, &err);
    if (!m)
        die(err.message);
    for (int r = 0; r < rounds; r++)
        for (int t = 0; t < (int)TOPICS && n < 512; t++) {
            size_t count;
            int first = 1000 + 2000 * t;
            int32_t *prompt = ids ? plain_ids(first, &count) : chat_ids(m, topics[t], &count);
            double a = bare(m, prompt, count, TOKENS, ids);
            double b = served(port,
                              ids ? ids_body(first, TOKENS, true)
                                  : chat_body(topics[t], TOKENS, 0, 1, true),
                              ids);
            ratio[n++] = b / a;
            mtplx_free(prompt);
        }
    mtplx_model_free(m);
    double mid = median(ratio, n);
    printf("served / bare decode time per token: median %.3f (quartiles %.3f-%.3f, %d pairs)\n",
           mid, ratio[n / 4], ratio[3 * n / 4], n);
    return 0;
}

/* ---- ttft ---------------------------------------------------------------------------------- */

static double ttft_ms(const struct stream *s)
{
    return (double)(s->first_ns - s->sent_ns) / 1e6;
}

static int ttft(int port, int rounds)
{
    static double alone[64], during[64], idle[64];
    double tokens = 0;
    pthread_t thread;
    rounds = rounds > 64 ? 64 : rounds;
    for (int r = 0; r < rounds; r++) {
        char question[64];
        snprintf(question, sizeof question, "Run %d. What is the capital of Norway?", r);
        char *prompt = long_prompt(LONG_PROMPT, question);
        char *slow = chat_body(prompt, 4, 0, 1, false);
        char *quick = chat_body("What is the capital of Norway?", 4, 0, 1, false);
        struct stream a = {.port = port, .body = slow}, b = {.port = port, .body = quick};
        run_thread(&a);
        alone[r] = ttft_ms(&a);
        tokens = (double)a.prompt;
        run_thread(&b);
        idle[r] = ttft_ms(&b);
        reset(&a);
        reset(&b);
        pthread_create(&thread, NULL, run_thread, &a);
        usleep((useconds_t)(alone[r] * 1000 * (0.15 + 0.6 * r / rounds)));
        run_thread(&b);
        during[r] = ttft_ms(&b);
        pthread_join(thread, NULL);
        if (a.first_ns < b.first_ns)
            printf("round %d: the long prompt was done before\n", r);
        reset(&a);
        reset(&b);
        free(prompt);
        free(slow);
        free(quick);
    }
    double long_ms = median(alone, rounds), idle_ms = median(idle, rounds);
    double during_ms = median(during, rounds);
    printf("prompt of %.0f tokens alone: first token after %.1f ms, %.1f ms for each 256\n"
           "short prompt alone: %.1f ms; during the long one: median %.1f ms, worst %.1f ms\n",
           tokens, long_ms, long_ms * 256 / tokens, idle_ms, during_ms, during[rounds - 1]);
    return 0;
}

static int number(int argc, char **argv, int i, int otherwise)
{
    return argc > i ? (int)strtol(argv[i], NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[1] : "";
    int port = number(argc, argv, 2, 0);
    if (strcmp(what, "load") == 0 && argc > 3) {
        int streams = number(argc, argv, 5, 64);
        return load(port, number(argc, argv, 3, 0), number(argc, argv, 4, 300),
                    streams > MAX_STREAMS ? MAX_STREAMS : streams);
    }
    if (strcmp(what, "scale") == 0)
        return scale(port, number(argc, argv, 3, 3), number(argc, argv, 4, 256), false);
    if (strcmp(what, "ids") == 0 && argc > 3)
        return scale(port, number(argc, argv, 4, 3), 64, true) ||
               overhead(port, argv[3], number(argc, argv, 4, 3), true);
    if (strcmp(what, "overhead") == 0 && argc > 3)
        return overhead(port, argv[3], number(argc, argv, 4, 5), false);
    if (strcmp(what, "ttft") == 0)
        return ttft(port, number(argc, argv, 3, 10));
    fprintf(stderr,
            "usage: serve load PORT PID [SECONDS [STREAMS]] | scale PORT [ROUNDS [TOKENS]] | "
            "overhead PORT MODEL [ROUNDS] | ids PORT MODEL [ROUNDS] | ttft PORT [ROUNDS]\n");
    return 2;
}
