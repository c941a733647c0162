/* Inside of the engine: what its files share.
 *
 *   engine.c    the calls from outside: submit, cancel, drain, settings
 *   owner.c     the owner thread: its turns and how it waits
 *   admit.c     memory, and who may run
 *   run.c       passes, tokens to sinks, the end of answers
 *   embed.c     embedding jobs
 *   reuse.c     kept sequences
 *   snapshot.c  status
 *   queue.c, sched.c, names.c  parts that know nothing of the others
 *
 * Invariants
 *   E1  `lock` guards everything in "shared" below, in the engine and in its jobs. It is never held
 *       while the model runs, a sink is called or a sequence is freed.
 *   E2  What is not shared belongs to the owner thread; from submission to admission to nobody.
 *   E3  A job is in the list of jobs from submit to retire. It is queued until it is admitted, and
 *       then stands in `active`.
 *   E4  reserved = sum of the reservations of active jobs; reserved and what is kept stay below
 *       the limit. */
#ifndef MX_ENGINE_INT_H
#define MX_ENGINE_INT_H

#include "engine/engine.h"
#include "engine/queue.h"
#include "engine/sched.h"
#include "runtime/generate.h"

#include <pthread.h>

/* Tokens of an answer without a limit that are reserved at once, and the step of growth. */
#define MX_ROOM_STEP 4096

struct mx_job;

struct mx_answer {
    struct mx_job *job;
    int index;
    mtplx_seq *seq;
    mtplx_gen *gen;
    size_t sent;  /* tokens that the sink has seen */
    size_t room;  /* tokens that the reservation covers */
    size_t limit; /* tokens that its sequence can get to */
    bool done;
    mtplx_error error;
    uint64_t width, cycles; /* answers of its cycles summed, and cycles */
};

/* An embedding being made. */
struct mx_embedding {
    mtplx_seq *seq;
    size_t read;
    double *sum; /* [dims] */
    float *out;  /* [dims] */
    size_t dims;
};

struct mx_job {
    struct mx_queue_item item; /* shared */
    struct mx_job *next;       /* shared: the list of jobs */
    uint64_t id;
    struct mx_job_options opt; /* prompt, owner and arrays are the job's */
    int choices;
    uint64_t submitted_ns;
    size_t room; /* tokens of a sequence that the first reservation covers */

    /* Shared. */
    bool cancelled;
    struct mx_job_view view; /* published once a turn */
    uint64_t reserved;

    /* The owner thread's. */
    bool active, forked;
    struct mx_job *next_gone; /* list of a turn: jobs to be ended with `verdict` */
    enum mx_job_end verdict;
    int open; /* choices without done() */
    uint64_t admitted_ns, first_ns;
    size_t cached, completion;
    uint64_t hits; /* of the kept sequence that it continues */
    enum mx_cache_miss miss;
    enum mx_job_end worst; /* for the counters: how its answers ended */
    struct mx_answer answers[MX_MAX_CHOICES];
    struct mx_embedding embed;
};

struct mx_kept {
    mtplx_seq *seq;
    char *owner;
    uint64_t id, made_ns, used_ns, bytes, hits;
};

struct mx_engine {
    mtplx_model *model;
    uint64_t memory_limit;
    int max_queue_owner; /* 0: max_queue */
    int reuse;           /* 0: none */
    size_t max_rows, context;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;    /* the owner thread has something to do */
    pthread_cond_t changed; /* a job is gone */

    /* Shared. */
    struct mx_engine_settings settings;
    struct mx_queue queue;
    struct mx_job *jobs, **jobs_end; /* in order of submission */
    int n_jobs;
    int n_answers; /* places that active jobs take */
    uint64_t next_id, next_kept;
    bool draining, stopping, quit; /* no new jobs; end all jobs; end the thread */
    bool poked;
    uint64_t reserved, used;
    struct mx_kept kept[MX_MAX_ACTIVE];
    int n_kept;
    struct mx_engine_counters counters; /* those of submit(), and what is published */
    uint64_t job_ns;                    /* smoothed time from admission to the end */

    /* The owner thread's. */
    struct mx_engine_settings now; /* settings of this turn */
    struct mx_job *active[MX_MAX_ACTIVE];
    int n_active;
    uint64_t turn, embed_turn;      /* prefill passes over prompts, over texts */
    bool embed_next;                /* whose pass is next where prompts and embeddings wait */
    struct mx_engine_counters mine; /* since the last publication */
    uint64_t saved_ns, busy_since_ns;
    bool learned; /* passes ran since the state was saved */
};

/* ---- engine.c ----------------------------------------------------------------------------- */

void mx_job_free(struct mx_job *j);

/* ---- owner.c ------------------------------------------------------------------------------ */

void *mx_engine_thread(void *engine);

/* ---- admit.c ------------------------------------------------------------------------------ */

/* Checks that a job could run on an idle engine, and sets its room and reservation. Errors: MEMORY.
 */
mtplx_status mx_engine_project(const struct mx_engine *e, struct mx_job *j, mtplx_error *err);

/* Makes jobs active while places and memory last. The lock is held. Sequences to be freed without
 * it go to trash[0 .. *n). Returns how many jobs became active: the last ones in `active`. */
struct mx_trash {
    mtplx_seq *seqs[MX_MAX_ACTIVE];
    int n;
};
int mx_engine_admit(struct mx_engine *e, struct mx_trash *trash);

/* Makes the reservation of an answer cover a few more tokens than it has; false when there is no
 * room. Takes the lock. */
bool mx_answer_grow(struct mx_engine *e, struct mx_answer *a);

/* ---- reuse.c ------------------------------------------------------------------------------ */

/* Under the lock: */
/* Takes the longest kept sequence that j's prompt continues out of the store, as the sequence of
 * its first answer, and sets cached and miss. */
void mx_reuse_take(struct mx_engine *e, struct mx_job *j);
uint64_t mx_reuse_bytes(const struct mx_engine *e);
/* Moves the sequence idle longest to the trash. */
void mx_reuse_drop_oldest(struct mx_engine *e, struct mx_trash *t);

/* Keeps an answer's sequence or frees it; either way the answer has none afterwards. Takes the
 * lock. */
void mx_reuse_keep(struct mx_engine *e, struct mx_answer *a);
void mx_trash_empty(struct mx_trash *t);

/* ---- run.c -------------------------------------------------------------------------------- */

/* Makes sequences and generations of an admitted job. */
void mx_job_start(struct mx_engine *e, struct mx_job *j);
/* Ends all answers of a job that are still open. */
void mx_job_end_all(struct mx_engine *e, struct mx_job *j, enum mx_job_end end,
                    const mtplx_error *error);
/* One prefill pass, if a prompt waits; one decode cycle of every answer whose reader keeps up.
 * False when there was nothing to do. */
bool mx_run_prefill(struct mx_engine *e);
bool mx_run_decode(struct mx_engine *e);
/* Takes a job whose choices are all done out of the engine and frees it. */
void mx_job_retire(struct mx_engine *e, struct mx_job *j);

/* ---- embed.c ------------------------------------------------------------------------------ */

void mx_embed_start(struct mx_engine *e, struct mx_job *j, mtplx_error *err);
/* Tokens to read still; 0 for other jobs. */
size_t mx_embed_left(const struct mx_job *j);
/* One pass over the next rows[i] tokens of each of n texts, `sum` in all. A text is complete when
 * nothing of it is left. */
mtplx_status mx_embed_pass(struct mx_engine *e, struct mx_job *const *jobs, const size_t *rows,
                           size_t n, size_t sum, mtplx_error *err);
void mx_embed_free(struct mx_embedding *m);

/* ---- snapshot.c --------------------------------------------------------------------------- */

/* Adds what happened since the last time to the shared counters (and views). The lock is held. */
void mx_engine_publish_counters(struct mx_engine *e);
void mx_engine_publish(struct mx_engine *e);

#endif
