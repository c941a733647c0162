/* One answer: from a rendered prompt to text on standard output, piece by piece. */
#ifndef MX_CLI_ANSWER_H
#define MX_CLI_ANSWER_H

#include "base/strbuf.h"
#include "cli/out.h"

#include "mtplx.h"

struct mx_answer_request {
    mtplx_model *model;
    const char *prompt; /* rendered */
    size_t prompt_len;
    mtplx_gen_options options;
    bool show_reasoning; /* stream it, before the answer */
    bool collect;        /* keep the parts in the answer instead of streaming them */
};

struct mx_answer {
    struct mx_strbuf answer, reasoning; /* with `collect` */
    const char *finish_reason;          /* "stop", "length" or "cancelled" */
    mtplx_gen_stats stats;
    bool answered; /* anything but reasoning was produced */
    bool reasoned;
};

/* Runs the request. A cancelled generation is a success with finish_reason "cancelled"; so is one
 * that was ended by a failure of `out`. Errors: those of mtplx_gen_new() and mtplx_gen_step(). */
mtplx_status mx_answer_run(const struct mx_answer_request *q, struct mx_cli_out *out,
                           struct mx_answer *a, mtplx_error *err);
void mx_answer_free(struct mx_answer *a);

#endif
