/* The counters themselves: one lock, fixed sizes, so that no client can make them grow. */
#include "serve/metrics_int.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct mx_metrics {
    pthread_mutex_t lock;
    struct mx_metrics_data d;
    struct mx_feed *feed; /* made for the first subscriber */
    bool stopped;
};

struct mx_metrics *mx_metrics_new(void)
{
    struct mx_metrics *m = calloc(1, sizeof *m);
    if (m && pthread_mutex_init(&m->lock, NULL) != 0) {
        free(m);
        return NULL;
    }
    return m;
}

void mx_metrics_stop(struct mx_metrics *m)
{
    pthread_mutex_lock(&m->lock);
    struct mx_feed *feed = m->feed;
    m->feed = NULL;
    m->stopped = true;
    pthread_mutex_unlock(&m->lock);
    /* Its thread takes the lock for a last event, so it is joined without. */
    mx_feed_free(feed);
}

void mx_metrics_free(struct mx_metrics *m)
{
    if (!m)
        return;
    mx_metrics_stop(m);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

int64_t mx_unix_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void copy_text(char *out, size_t size, const char *text)
{
    size_t n = text ? strnlen(text, size - 1) : 0;
    if (n > 0)
        memcpy(out, text, n);
    out[n] = '\0';
}

/* ---- Requests ----------------------------------------------------------------------------- */

static int bucket_of(uint64_t ns)
{
    int i = 0;
    while (i < MX_ENGINE_HIST - 1 && ns >= (UINT64_C(1000000) << i))
        i++;
    return i;
}

static void count_route(struct mx_metrics_data *d, const char *route, int status)
{
    char name[sizeof d->routes[0].route];
    copy_text(name, sizeof name, route && *route ? route : "none");
    for (int i = 0; i < d->n_routes; i++)
        if (d->routes[i].status == status && strcmp(d->routes[i].route, name) == 0) {
            d->routes[i].n++;
            return;
        }
    if (d->n_routes == MX_METRICS_ROUTES) {
        d->other_routes++;
        return;
    }
    struct mx_route_count *r = &d->routes[d->n_routes++];
    copy_text(r->route, sizeof r->route, name);
    r->status = status;
    r->n = 1;
}

void mx_metrics_request(struct mx_metrics *m, const char *route, int status, uint64_t ns,
                        size_t body_bytes)
{
    pthread_mutex_lock(&m->lock);
    count_route(&m->d, route, status);
    m->d.http_hist[bucket_of(ns)]++;
    m->d.http_ns += ns;
    m->d.http_n++;
    m->d.body_bytes += body_bytes;
    pthread_mutex_unlock(&m->lock);
}

/* ---- Jobs of requests --------------------------------------------------------------------- */

/* The part of an id that all spellings of it share. */
static const char *id_tail(const char *id)
{
    const char *tail = id;
    for (const char *p = id; *p; p++)
        if (*p == '_' || *p == '-')
            tail = p + 1;
    return tail;
}

void mx_metrics_started(struct mx_metrics *m, const char *id, uint64_t job)
{
    pthread_mutex_lock(&m->lock);
    struct mx_request_job *j = &m->d.jobs[m->d.next_job++ % MX_METRICS_JOBS];
    copy_text(j->id, sizeof j->id, id);
    j->job = job;
    pthread_mutex_unlock(&m->lock);
}

int mx_metrics_jobs(struct mx_metrics *m, const char *id, uint64_t *jobs, int max)
{
    const char *tail = id_tail(id);
    int n = 0;
    if (*tail == '\0')
        return 0;
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < MX_METRICS_JOBS && n < max; i++) {
        const struct mx_request_job *j =
            &m->d.jobs[(m->d.next_job + MX_METRICS_JOBS - 1 - i) % MX_METRICS_JOBS];
        if (j->job != 0 && strcmp(id_tail(j->id), tail) == 0)
            jobs[n++] = j->job;
    }
    pthread_mutex_unlock(&m->lock);
    return n;
}

void mx_metrics_request_of(struct mx_metrics *m, uint64_t job, char out[40])
{
    out[0] = '\0';
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; job != 0 && i < MX_METRICS_JOBS; i++)
        if (m->d.jobs[i].job == job) {
            copy_text(out, 40, m->d.jobs[i].id);
            break;
        }
    pthread_mutex_unlock(&m->lock);
}

/* ---- Answers ------------------------------------------------------------------------------ */

/* Clients beyond the table share its last entry. */
static struct mx_client_count *client_entry(struct mx_metrics_data *d, const char *client)
{
    char name[sizeof d->clients[0].client];
    copy_text(name, sizeof name, client && *client ? client : "none");
    for (int i = 0; i < d->n_clients; i++)
        if (strcmp(d->clients[i].client, name) == 0)
            return &d->clients[i];
    if (d->n_clients == MX_METRICS_CLIENTS)
        return &d->clients[MX_METRICS_CLIENTS - 1];
    struct mx_client_count *c = &d->clients[d->n_clients++];
    copy_text(c->client, sizeof c->client, d->n_clients == MX_METRICS_CLIENTS ? "other" : name);
    return c;
}

static void fill_record(struct mx_answer_record *a, const char *id, const char *client,
                        const struct mx_turn_finish *f)
{
    memset(a, 0, sizeof *a);
    copy_text(a->id, sizeof a->id, id);
    copy_text(a->client, sizeof a->client, client);
    a->time = mx_unix_ms();
    a->reason = f->reason;
    a->tool_calls = f->tool_calls;
    a->prompt_tokens = f->prompt_tokens;
    a->cached_tokens = f->cached_tokens;
    a->completion_tokens = f->completion_tokens;
    a->reasoning_tokens = f->reasoning_tokens;
    if (!f->job)
        return;
    a->miss = f->job->miss;
    a->restored = f->job->restored;
    a->from_disk = f->job->from_disk;
    a->known_tokens = f->job->known_tokens;
    a->restore_ns = f->job->restore_ns;
    a->queue_ns = f->job->queue_ns;
    a->ttft_ns = f->job->ttft_ns;
    a->total_ns = f->job->total_ns;
    a->mean_width = f->job->mean_width;
    a->stats = f->job->stats;
}

static void keep_recent(struct mx_metrics_data *d, const struct mx_answer_record *a)
{
    d->recent[d->next_recent++ % MX_METRICS_RECENT] = *a;
    if (d->n_recent < MX_METRICS_RECENT)
        d->n_recent++;
}

/* The choices of one request read its prompt once. */
static void keep_prefill(struct mx_metrics_data *d, const struct mx_answer_record *a)
{
    if (a->stats.prefill_ns == 0)
        return;
    const struct mx_answer_record *last =
        &d->prefills[(d->next_prefill + MX_METRICS_PREFILLS - 1) % MX_METRICS_PREFILLS];
    if (d->n_prefills > 0 && strcmp(last->id, a->id) == 0 &&
        last->prompt_tokens == a->prompt_tokens)
        return;
    d->prefills[d->next_prefill++ % MX_METRICS_PREFILLS] = *a;
    if (d->n_prefills < MX_METRICS_PREFILLS)
        d->n_prefills++;
}

void mx_metrics_finish(struct mx_metrics *m, const char *id, const char *client,
                       const struct mx_turn_finish *f)
{
    struct mx_answer_record a;
    fill_record(&a, id, client, f);
    pthread_mutex_lock(&m->lock);
    struct mx_metrics_data *d = &m->d;
    if ((unsigned)a.reason < MX_METRICS_REASONS)
        d->reasons[a.reason]++;
    if (f->job && (unsigned)a.miss < MX_METRICS_MISSES)
        d->misses[a.miss]++;
    struct mx_client_count *c = client_entry(d, client);
    c->answers++;
    c->prompt_tokens += a.prompt_tokens;
    c->cached_tokens += a.cached_tokens;
    c->completion_tokens += a.completion_tokens;
    d->prompt_tokens += a.prompt_tokens;
    d->cached_tokens += a.cached_tokens;
    d->completion_tokens += a.completion_tokens;
    d->reasoning_tokens += a.reasoning_tokens;
    keep_recent(d, &a);
    keep_prefill(d, &a);
    pthread_mutex_unlock(&m->lock);
}

void mx_metrics_tools(struct mx_metrics *m, const struct mx_toolcall_counts *c)
{
    pthread_mutex_lock(&m->lock);
    struct mx_toolcall_counts *t = &m->d.tools;
    t->parsed += c->parsed;
    t->malformed += c->malformed;
    t->unknown_tool += c->unknown_tool;
    t->stray += c->stray;
    t->dropped += c->dropped;
    pthread_mutex_unlock(&m->lock);
}

void mx_metrics_unknown_fields(struct mx_metrics *m, unsigned n)
{
    pthread_mutex_lock(&m->lock);
    m->d.unknown_fields += n;
    pthread_mutex_unlock(&m->lock);
}

/* ---- Reading ------------------------------------------------------------------------------ */

struct mx_metrics_data *mx_metrics_copy(struct mx_metrics *m)
{
    struct mx_metrics_data *copy = malloc(sizeof *copy);
    if (!copy)
        return NULL;
    pthread_mutex_lock(&m->lock);
    *copy = m->d;
    copy->subscribers = m->feed ? mx_feed_count(m->feed) : 0;
    pthread_mutex_unlock(&m->lock);
    return copy;
}

bool mx_metrics_subscribe(struct mx_metrics *m, struct mx_app *app, struct mx_exchange *x,
                          struct mx_api_error *e)
{
    bool ok;
    pthread_mutex_lock(&m->lock);
    if (!m->feed && !m->stopped)
        m->feed = mx_feed_new(app);
    if (m->feed)
        ok = mx_feed_add(m->feed, x, e);
    else
        ok = mx_api_fail(e, 503, NULL, "the server is shutting down");
    pthread_mutex_unlock(&m->lock);
    return ok;
}
