/* Engine: requests in, token events out. One owner thread runs the model.
 *
 * A job is one prompt and one to MX_MAX_CHOICES answers to it. Jobs wait in bounded queues, one for
 * each owner (API key and session), served in turns by priority; the owner thread admits them where
 * memory allows, reads their prompts in shared chunks and decodes them in shared cycles. They join
 * and leave at cycle boundaries.
 *
 * Invariants
 *   N1  A job's tokens do not depend on the other jobs (sampled ones of one seed: under a fixed
 *       depth).
 *   N2  Between two decode cycles of running answers stands at most one prefill pass, of at most
 *       prefill_chunk rows: the stall that a long prompt can cause.
 *   N3  In a prefill pass short rests of prompts go first, so that a short prompt waits for at most
 *       the pass that runs when it arrives; the longest waiting one keeps a share, so that long
 *       prompts get done.
 *   N4  Sinks are called on the owner thread with no lock held. After the last done() of a job the
 *       engine does not touch its argument again, and done() comes exactly once per choice of every
 *       job that was accepted.
 *
 * Order. Inside a priority class the owner with the fewest running jobs goes first, of those the
 * one served longest ago; an owner's own jobs keep their order. Higher classes go first, but a
 * class that was passed over eight times in a row goes next. The job whose turn it is is not
 * overtaken by smaller ones while it waits for memory or for places. A job of several choices takes
 * as many places, and goes alone where max_active is less.
 *
 * Reuse. The prompt of a job is looked up in the session bank when it is admitted, and read from
 * where the longest state known ends; at least one token is always read. What it reads is captured
 * at the points that the bank plans, and the end of the first answer as well, also of one that was
 * cancelled. A job whose state lies on disk is restored by a thread of its own while the others go
 * on. A job that begins like a prompt being read at the moment waits until the shared part is read,
 * as that brings it there with fewer rows than reading on its own.
 *
 * Memory. A job is admitted when what it may come to hold fits into memory_limit beside what the
 * running ones may come to hold; the session bank shrinks to make room. With max_tokens its whole
 * answer is reserved, so that an admitted job never runs out. Without, or with so many that they
 * fill the context window, an answer reserves 4,096 tokens beyond the prompt (fewer where the limit
 * is tight) and more whenever it needs them; when nothing more can be had it ends with
 * MX_END_LENGTH.
 *
 * Failure. When a shared pass fails, its members try alone, and those that cannot go on end with
 * MX_END_ERROR. The others go on. */
#ifndef MX_ENGINE_ENGINE_H
#define MX_ENGINE_ENGINE_H

#include "base/error.h"
#include "session/bank.h"
#include "session/cold.h"

enum mx_engine_mode {
    MX_ENGINE_SERIAL = 0,  /* one job after the other */
    MX_ENGINE_COOPERATIVE, /* jobs take turns, passes are not shared */
    MX_ENGINE_AR_BATCH,    /* shared plain decoding, no drafts */
    MX_ENGINE_MTP_BATCH,   /* shared draft-verify cycles; the default */
};
/* serial, cooperative, ar_batch, mtp_batch, or hyper for the last; also with dashes. -1: none. */
int mx_engine_mode_named(const char *name);
const char *mx_engine_mode_name(enum mx_engine_mode mode);

#define MX_MAX_CHOICES 16
#define MX_MAX_ACTIVE 64

struct mx_engine_options {
    mtplx_model *model; /* outlives the engine */
    enum mx_engine_mode mode;
    int max_active;      /* answers decoded together, 1..MX_MAX_ACTIVE; 0: 8 */
    int max_queue;       /* jobs waiting in all, beside those that free places take; 0: 8 *
                            max_active */
    int max_queue_owner; /* jobs waiting for one owner; 0: the same */
    int prefill_chunk;   /* rows of a prefill pass while answers are being decoded; 0: the
                            model's max_rows */
    uint64_t
        memory_limit; /* bytes for sequences and generations; 0: from RAM, cgroup and weights */
    /* The session bank. Zeros are filled in: the model, and a budget of half of memory_limit, which
     * it shares with the running jobs. bank.cold is the caller's, NULL for none, and outlives the
     * engine. */
    bool no_bank;
    struct mx_bank_options bank;
};

/* What may be changed while running. */
struct mx_engine_settings {
    enum mx_engine_mode mode;
    int max_active, max_queue, prefill_chunk;
};

/* ---- Jobs --------------------------------------------------------------------------------- */

enum mx_job_kind {
    MX_JOB_GENERATE = 0,
    MX_JOB_EMBED_MEAN, /* mean of the final-norm hidden states */
    MX_JOB_EMBED_LAST, /* that of the last token */
    /* Reads the prompt into the session bank while nothing else is to do, in short passes. Ends
     * with MX_END_STOP when the bank has all of it, and with MX_END_CANCELLED as soon as another
     * job comes, or a newer one of its scope and session before it has started; what it has read
     * until then is kept. done() comes once, tokens() never. It takes no place in the queues and
     * counters of others, and does not start where the bank would have to shrink for it. */
    MX_JOB_WARM,
};

enum mx_job_end {
    MX_END_STOP = 0,  /* a stop token */
    MX_END_LENGTH,    /* max_tokens or the context window */
    MX_END_SINK,      /* the sink had enough (a stop string) */
    MX_END_CANCELLED, /* mx_engine_cancel() */
    MX_END_DEADLINE,
    MX_END_SHUTDOWN,
    MX_END_ERROR, /* see error */
};

struct mx_job_result {
    enum mx_job_end end;
    mtplx_error error;
    mtplx_gen_stats stats;
    uint64_t queue_ns; /* from submission to admission */
    uint64_t ttft_ns;  /* from submission to the first token; 0: none */
    uint64_t total_ns; /* from submission to now */
    size_t prompt_tokens, cached_tokens, completion_tokens;
    enum mx_cache_miss miss;
    enum mx_restore_kind restored;
    size_t known_tokens;    /* of the prompt, see mx_bank_hit.known */
    bool from_disk;         /* the restored state was read from the cold tier */
    uint64_t restore_ns;    /* what looking up and restoring took */
    double mean_width;      /* answers that shared this one's cycles, on average */
    const float *embedding; /* EMBED: [dims], valid during the call */
    size_t dims;
};

/* Calls may submit, cancel, poke and look, but not drain or free. */
struct mx_job_sink {
    /* New tokens ids[0..n) of a choice, stop token included; answer token index of the first is
     * `from`. Returns SIZE_MAX to go on, or how many tokens of the answer to keep, which ends it.
     */
    size_t (*tokens)(void *arg, int choice, const mtplx_gen *gen, const int32_t *ids, size_t from,
                     size_t n);
    /* A choice has ended. `gen` is NULL when it never started. */
    void (*done)(void *arg, int choice, const mtplx_gen *gen, const struct mx_job_result *r);
    /* True while the reader of a choice is behind: it is left out of cycles. Polled before each
     * cycle, so it must be quick. NULL: never. */
    bool (*blocked)(void *arg, int choice);
    /* Prompt tokens read of all, after each pass. NULL: not wanted. */
    void (*progress)(void *arg, size_t read, size_t of);
};

struct mx_job_options {
    enum mx_job_kind kind;
    const int32_t *prompt; /* copied */
    size_t n_prompt;
    mtplx_gen_options gen; /* `cancel` is ignored; arrays are copied; the grammar stays the
                              caller's and outlives the job */
    /* 0 is 1; choice i is seeded with seed + i and has the tokens of a job of its own with that
     * seed. The prompt is read once, for choice 0: only its generation has prompt_logprobs. */
    int choices;
    const char *owner; /* whose turn it takes; NULL: "" . Copied */
    /* Whose prefixes it may restore (an API key), and the label of its conversation in the bank;
     * NULL: "", and the owner. Copied. */
    const char *scope, *session;
    /* Token counts at which messages of the prompt begin, ascending: restore points that the next
     * turn can use. Copied. */
    const size_t *borders;
    size_t n_borders;
    int priority;                   /* -1 background, 0, 1 first */
    uint64_t deadline_ns;           /* on mx_now_ns()'s clock; 0: none */
    bool no_reuse;                  /* read the whole prompt, and keep nothing */
    const struct mx_job_sink *sink; /* outlives the job */
    void *arg;
};

struct mx_engine;
/* Starts the owner thread. */
struct mx_engine *mx_engine_new(const struct mx_engine_options *o, mtplx_error *err);
/* Ends all jobs (MX_END_SHUTDOWN), joins, and saves what the model learned, which an idle engine
 * also does every few minutes. No other call may be under way. NULL is allowed. */
void mx_engine_free(struct mx_engine *e);

/* Queues a job and returns its id (never 0); 0 on failure, with nothing called. Any thread. Errors:
 * LIMIT (a queue is full; or the prompt does not fit the context: then err->status is ARGUMENT),
 * MEMORY (the projection exceeds what could ever be free, in the sentence), CANCELLED (shutting
 * down), ARGUMENT. */
uint64_t mx_engine_submit(struct mx_engine *e, const struct mx_job_options *o, mtplx_error *err);
/* Ends a job soon, at the next chunk or cycle boundary; done() still comes. False when there is no
 * such job (any more). Any thread. */
bool mx_engine_cancel(struct mx_engine *e, uint64_t id);
/* Refuses new jobs from now on and waits until none is left or the time is over, then ends those
 * left (MX_END_SHUTDOWN) and waits for that; true when all ended by themselves. */
bool mx_engine_drain(struct mx_engine *e, uint64_t timeout_ns);
/* Seconds after which a refused job may be worth another try. */
int mx_engine_retry_after(struct mx_engine *e);
/* Wakes the owner thread: a blocked() answer may have changed. Any thread. */
void mx_engine_poke(struct mx_engine *e);

void mx_engine_get_settings(struct mx_engine *e, struct mx_engine_settings *s);
/* Errors: ARGUMENT naming the setting. Takes effect at the next cycle boundary. */
mtplx_status mx_engine_set_settings(struct mx_engine *e, const struct mx_engine_settings *s,
                                    mtplx_error *err);
/* The session bank, for status and steering; NULL: none. Its cold tier, NULL: none. */
struct mx_bank *mx_engine_bank(struct mx_engine *e);
struct mx_cold *mx_engine_cold(struct mx_engine *e);

/* ---- Status ------------------------------------------------------------------------------- */

enum mx_job_state {
    MX_JOB_QUEUED = 0,
    MX_JOB_RESTORING, /* admitted, its state is being read from the cold tier */
    MX_JOB_PREFILL,   /* also while it waits for the shared part of another prompt to be read */
    MX_JOB_DECODE,
};

struct mx_job_view {
    uint64_t id;
    enum mx_job_state state;
    enum mx_job_kind kind;
    int choices, priority;
    size_t prompt_tokens, read_tokens, cached_tokens, completion_tokens;
    uint64_t age_ns;
    double tokens_per_s; /* while decoding */
    char owner[48];
};

#define MX_ENGINE_HIST 24 /* buckets of a duration: below 1 ms * 2^i, the last open */

struct mx_engine_counters {
    uint64_t accepted, finished, cancelled, failed, refused_queue, refused_memory, expired;
    uint64_t prompt_tokens, cached_tokens, completion_tokens;
    uint64_t prefill_passes, cycles, busy_ns;
    uint64_t width[MX_MAX_ACTIVE + 1]; /* cycles by number of answers */
    uint64_t drafted[MTPLX_MAX_DEPTH], accepted_drafts[MTPLX_MAX_DEPTH];
    uint64_t queue_hist[MX_ENGINE_HIST], ttft_hist[MX_ENGINE_HIST], total_hist[MX_ENGINE_HIST];
    uint64_t queue_ns, ttft_ns, total_ns; /* sums */
    /* Restores, those of them from the cold tier, and what they took; jobs that waited for another
     * one to read what both begin with. */
    uint64_t restores, disk_restores, restore_ns, shared_waits;
    /* Jobs of kind WARM: ended, those of them that read all, tokens read. The counters above leave
     * them out. */
    uint64_t warm_jobs, warm_finished, warm_tokens;
    uint64_t misses[MX_MISS_COUNT]; /* answers by reason */
};

struct mx_engine_snapshot {
    struct mx_engine_settings settings;
    struct mx_engine_counters counters;
    /* Used: the bank and the sequences of running jobs; blocks that both hold count twice. */
    uint64_t memory_limit, memory_used, memory_reserved;
    int queued, active, n_jobs;
    struct mx_job_view jobs[MX_MAX_ACTIVE * 2]; /* active first, then those waiting longest */
};
/* A consistent copy; any thread. */
void mx_engine_get_snapshot(struct mx_engine *e, struct mx_engine_snapshot *s);

#endif
