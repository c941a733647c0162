/* Inside of the engine: what its files share.
 *
 *   engine.c    the calls from outside: submit, cancel, drain, settings
 *   owner.c     the owner thread: its turns and how it waits
 *   admit.c     memory, and who may run
 *   run.c       passes, tokens to sinks, the end of answers
 *   embed.c     embedding jobs
 *   restore.c   what the session bank gives a job, and what it gets of it
 *   load.c      the thread that reads the cold tier
 *   warm.c      reading ahead in idle time
 *   snapshot.c  status
 *   queue.c, sched.c, names.c  parts that know nothing of the others
 *
 * Invariants
 *   E1  `lock` guards everything in "shared" below, in the engine and in its jobs. It is never held
 *       while the model runs, a sink is called or a sequence is freed. The bank's own lock may be
 *       taken under it.
 *   E2  What is not shared belongs to the owner thread; from submission to admission to nobody.
 *   E3  A job is in the list of jobs from submit to retire. It is queued until it is admitted, and
 *       then stands in `active`; a warm job waits in a line of its own, and then is `warm`.
 *   E4  reserved = sum of the reservations of active jobs and of the warm one. Before any of them
 *       takes memory, and after the bank has taken some, reserved and the bank's bytes are brought
 *       below the limit: by shrinking the bank.
 *   E5  A job that is admitted but not STARTED has no sequence. It waits only for the loader, for a
 *       bounded time, or for a started job's prefill, which ends: never for another one that
 *       waits.
 *   E6  The loader thread touches its loads and the bank, never a job: a job that ends leaves its
 *       load behind. */
#ifndef MX_ENGINE_INT_H
#define MX_ENGINE_INT_H

#include "engine/engine.h"
#include "engine/queue.h"
#include "engine/sched.h"
#include "runtime/generate.h"
#include "runtime/snapshot.h"

#include <pthread.h>

/* Tokens of an answer without a limit that are reserved at once, and the step of growth. */
#define MX_ROOM_STEP 4096
/* Rows of the first pass of a warm job. */
#define MX_WARM_ROWS 16

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

/* A prompt whose state is being read from disk. */
struct mx_load;

enum mx_phase {
    MX_PHASE_STARTED = 0, /* or not admitted yet */
    MX_PHASE_LOADING,     /* the loader thread is at it */
    MX_PHASE_FOLLOWING,   /* another job reads what both begin with */
};

/* What a job and the session bank have to do with each other. */
struct mx_reuse {
    enum mx_phase phase;
    struct mx_bank_hit hit; /* until it is started; the snapshot is a reference of the job */
    size_t cold;            /* tokens that the disk has */
    struct mx_load *load;
    uint64_t load_until; /* when to go on without the disk */
    bool loaded;         /* the disk has been asked */
    bool from_disk;      /* hit came from it */
    uint64_t leader;     /* FOLLOWING: the id of the job that reads, */
    size_t goal;         /* and how far it has to come */
    int waits;           /* times that it followed */
    uint64_t ns;         /* spent on looking up, loading and restoring */
    /* Where the prompt is captured, ascending, and what the points are. */
    size_t at[MX_MAX_CAPTURES], n;
    enum mx_point point[MX_MAX_CAPTURES];
    size_t awaited; /* the next token count that a follower waits for; 0: none */
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
    struct mx_job *next_warm; /* the line of warm jobs */
    struct mx_job_view view;  /* published once a turn */
    uint64_t reserved;

    /* The owner thread's. */
    bool active, forked;
    struct mx_job *next_gone; /* list of a turn: jobs to be ended with `verdict` */
    enum mx_job_end verdict;
    int open; /* choices without done() */
    uint64_t admitted_ns, first_ns;
    size_t cached, known, completion;
    enum mx_cache_miss miss;
    enum mx_restore_kind restored;
    struct mx_reuse reuse;
    enum mx_job_end worst; /* for the counters: how its answers ended */
    struct mx_answer answers[MX_MAX_CHOICES];
    struct mx_embedding embed;
};

struct mx_engine {
    mtplx_model *model;
    uint64_t memory_limit;
    int max_queue_owner; /* 0: max_queue */
    size_t max_rows, context;
    struct mx_bank *bank; /* NULL: none */
    struct mx_cold *cold; /* the caller's; NULL: none */

    pthread_t thread, loader; /* the loader runs where there is a cold tier */
    pthread_mutex_t lock;
    pthread_cond_t wake;    /* the owner thread has something to do */
    pthread_cond_t changed; /* a job is gone */
    pthread_cond_t loads;   /* the loader has something to do */

    /* Shared. */
    struct mx_engine_settings settings;
    struct mx_queue queue;
    struct mx_job *jobs, **jobs_end; /* in order of submission */
    int n_jobs;
    int n_answers; /* places that active jobs take */
    uint64_t next_id;
    bool draining, stopping, quit; /* no new jobs; end all jobs; end the thread */
    bool poked;
    uint64_t reserved, used;
    bool loader_quit, loader_busy;
    bool loader_late; /* what it reads was waited for in vain: it is not asked for more meanwhile */
    struct mx_load *to_load;            /* in order */
    struct mx_job *warm_first;          /* warm jobs that wait, in order of submission */
    int n_warm, n_warm_waiting;         /* warm jobs of n_jobs, and of them those that wait */
    struct mx_engine_counters counters; /* those of submit(), and what is published */
    uint64_t job_ns;                    /* smoothed time from admission to the end */

    /* The owner thread's. */
    struct mx_engine_settings now; /* settings of this turn */
    struct mx_job *active[MX_MAX_ACTIVE];
    int n_active;
    struct mx_job *warm;            /* the warm job that runs */
    size_t warm_rows;               /* of its next pass */
    uint64_t tick_ns;               /* when the bank was last told of the time */
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

/* Makes jobs active while places and memory last. The lock is held. Returns how many became active:
 * the last ones in `active`. They are looked up next, then the bank is fitted, then they start. */
int mx_engine_admit(struct mx_engine *e);
/* The same for the warm job waiting longest, which does not make the bank shrink; it becomes
 * e->warm. The lock is held. */
bool mx_engine_admit_warm(struct mx_engine *e);
/* Shrinks the bank to what the reservations leave (E4). The owner thread, without the lock. */
void mx_engine_fit_bank(struct mx_engine *e);

/* Makes the reservation of an answer cover a few more tokens than it has; false when there is no
 * room. Takes the lock. */
bool mx_answer_grow(struct mx_engine *e, struct mx_answer *a);

/* ---- restore.c ---------------------------------------------------------------------------- */

/* All on the owner thread, without the lock. */

/* Looks an admitted job up in the bank, and holds on to what is there for it. */
void mx_reuse_find(struct mx_engine *e, struct mx_job *j);
/* Starts it with the longest state known, or leaves it LOADING or FOLLOWING. */
void mx_reuse_start(struct mx_engine *e, struct mx_job *j);
/* Starts jobs that have waited long enough, and notes what others wait for. False: nothing moved.
 */
bool mx_reuse_poll(struct mx_engine *e);
/* Makes room in the bank for what a pass over the next `rows` tokens of a prompt will capture. */
void mx_reuse_make_room(struct mx_engine *e, const struct mx_job *j, size_t rows);
/* Puts what the last pass captured into the bank. */
void mx_reuse_collect(struct mx_engine *e, struct mx_answer *a);
/* Gives an ended answer's sequence to the bank or frees it; either way the answer has none
 * afterwards, and its reservation is given back. */
void mx_reuse_keep(struct mx_engine *e, struct mx_answer *a);
/* Gives up what a job still holds of the bank. */
void mx_reuse_drop(struct mx_reuse *r);

/* ---- load.c ------------------------------------------------------------------------------- */

/* The first three on the owner thread, without the lock. */

/* Asks the loader for the state of j's prompt; false: no memory, or the disk hangs. */
bool mx_load_start(struct mx_engine *e, struct mx_job *j);
/* Takes over what was loaded; false: not yet. */
bool mx_load_take(struct mx_engine *e, struct mx_job *j, struct mx_bank_hit *hit);
/* Gives up on a load that takes too long. */
void mx_load_give_up(struct mx_engine *e, struct mx_job *j);
/* Leaves j's load, if there is one, to the loader, which drops it soon. */
void mx_load_abandon(struct mx_engine *e, struct mx_job *j);
void *mx_load_thread(void *engine);

/* ---- warm.c ------------------------------------------------------------------------------- */

/* Under the lock: */
/* Puts a warm job in line, in place of one of the same scope and session that has not started.
 * Errors: LIMIT. */
mtplx_status mx_warm_push(struct mx_engine *e, struct mx_job *j, mtplx_error *err);
void mx_warm_remove(struct mx_engine *e, struct mx_job *j);
/* Ends those that wait for the conversation that this job goes on with. */
void mx_warm_supersede(struct mx_engine *e, const struct mx_job *j);
/* Whether a warm job has to end now. */
bool mx_warm_over(const struct mx_engine *e, const struct mx_job *j);

/* One short pass of the warm job, on the owner thread; false when there is none. */
bool mx_run_warm(struct mx_engine *e);

/* ---- run.c -------------------------------------------------------------------------------- */

/* Looks up what is known of an admitted job, before the bank shrinks for its reservation. */
void mx_job_look_up(struct mx_engine *e, struct mx_job *j);
/* Starts it, or leaves it to wait for its state. */
void mx_job_start(struct mx_engine *e, struct mx_job *j);
/* Makes the generation of a job whose sequence is there. */
void mx_job_run(struct mx_engine *e, struct mx_job *j);
/* Tells the sink how much of the prompt has been read. */
void mx_job_tell(struct mx_job *j);
/* Embeddings and answers are read in other ways. */
bool mx_job_embeds(const struct mx_job *j);
/* What it was told and what it may know stay out of the bank. */
bool mx_job_bypasses(const struct mx_job *j);
/* Tokens of the prompt that its first answer has. */
size_t mx_job_read(const struct mx_job *j);
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
