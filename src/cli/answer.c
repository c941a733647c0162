/* One answer: from a rendered prompt to text on standard output, piece by piece. */
#include "cli/answer.h"

#include "base/error.h"
#include "text/reasoning.h"

/* What lives while an answer is being made. */
struct stream {
    const struct mx_answer_request *q;
    struct mx_cli_out *out;
    struct mx_answer *a;
    mtplx_seq *seq;
    mtplx_gen *gen;
    mtplx_detok *detok;
    struct mx_reasoning parts;
    size_t seen;       /* tokens already turned into text */
    char last;         /* last character written, 0 before the first */
    bool in_reasoning; /* of what is on the screen */
};

static void show_reasoning(struct stream *s, const char *text, size_t n)
{
    if (!s->in_reasoning)
        mx_cli_dim(s->out, true);
    s->in_reasoning = true;
    mx_cli_write_model_text(s->out, text, n);
    s->last = text[n - 1];
}

/* Ends the dimmed text; with `gap`, leaves an empty line before the answer. */
static void end_reasoning(struct stream *s, bool gap)
{
    if (!s->in_reasoning)
        return;
    s->in_reasoning = false;
    mx_cli_dim(s->out, false);
    if (gap)
        mx_cli_puts(s->out, "\n\n");
}

static void on_part(void *arg, enum mx_answer_part part, const char *text, size_t n)
{
    struct stream *s = arg;
    bool thought = part == MX_PART_REASONING;
    *(thought ? &s->a->reasoned : &s->a->answered) = true;
    if (s->q->collect) {
        mx_strbuf_append(thought ? &s->a->reasoning : &s->a->answer, text, n);
    } else if (thought) {
        if (s->q->show_reasoning)
            show_reasoning(s, text, n);
    } else {
        end_reasoning(s, true);
        mx_cli_write_model_text(s->out, text, n);
        s->last = text[n - 1];
    }
}

static mtplx_status push_text(struct stream *s, const char *text, size_t n, mtplx_error *err)
{
    if (!text || !mx_reasoning_push(&s->parts, text, n))
        return mx_error_nomem(err, "the answer", n);
    return MTPLX_OK;
}

/* Turns the tokens of the last step into text. The stop token is no text. */
static mtplx_status take_tokens(struct stream *s, mtplx_error *err)
{
    size_t count, n;
    const int32_t *tokens = mtplx_gen_tokens(s->gen, &count);
    mtplx_status st = MTPLX_OK;
    if (mtplx_gen_finish(s->gen) == MTPLX_FINISH_STOP && count > s->seen)
        count--;
    while (st == MTPLX_OK && s->seen < count) {
        const char *text = mtplx_detok_push(s->detok, tokens[s->seen++], &n);
        st = push_text(s, text, n, err);
    }
    return st;
}

static mtplx_status generate(struct stream *s, mtplx_error *err)
{
    mtplx_status st = MTPLX_OK;
    while (st == MTPLX_OK && mtplx_gen_finish(s->gen) == MTPLX_FINISH_NONE && !s->out->error) {
        st = mtplx_gen_step(s->gen, err);
        if (st == MTPLX_OK || st == MTPLX_ERR_CANCELLED) {
            mtplx_status text = take_tokens(s, err);
            st = text == MTPLX_OK ? st : text;
        }
    }
    return st;
}

/* Emits what the decoder and the splitter still hold and ends the last line. */
static mtplx_status finish_text(struct stream *s, mtplx_error *err)
{
    size_t n;
    const char *rest = mtplx_detok_flush(s->detok, &n);
    mtplx_status st = push_text(s, rest, n, err);
    mx_reasoning_finish(&s->parts);
    end_reasoning(s, false);
    if (!s->q->collect && s->last != '\n' && s->last != '\0')
        mx_cli_puts(s->out, "\n");
    return st;
}

static const char *finish_reason(const struct stream *s)
{
    switch (mtplx_gen_finish(s->gen)) {
    case MTPLX_FINISH_STOP: return "stop";
    case MTPLX_FINISH_LENGTH: return "length";
    case MTPLX_FINISH_CANCELLED:
    case MTPLX_FINISH_ERROR:
    case MTPLX_FINISH_NONE: break;
    }
    return "cancelled";
}

static mtplx_status start(struct stream *s, mtplx_error *err)
{
    const struct mx_answer_request *q = s->q;
    size_t count;
    int32_t *ids = mtplx_encode(q->model, q->prompt, q->prompt_len, false, &count, err);
    if (!ids)
        return err->status;
    s->seq = mtplx_seq_new(q->model, err);
    if (s->seq)
        s->gen = mtplx_gen_new(s->seq, ids, count, &q->options, err);
    mtplx_free(ids);
    if (!s->gen)
        return err->status;
    s->detok = mtplx_detok_new(q->model, true);
    return s->detok ? MTPLX_OK : mx_error_nomem(err, "the text decoder", 0);
}

mtplx_status mx_answer_run(const struct mx_answer_request *q, struct mx_cli_out *out,
                           struct mx_answer *a, mtplx_error *err)
{
    struct stream s = {.q = q, .out = out, .a = a};
    *a = (struct mx_answer){.finish_reason = "cancelled"};
    mx_strbuf_init(&a->answer, 0);
    mx_strbuf_init(&a->reasoning, 0);
    mx_reasoning_init(&s.parts, MX_REASONING_THINK, q->prompt, q->prompt_len, on_part, &s);

    mtplx_status st = start(&s, err);
    if (st == MTPLX_OK) {
        st = generate(&s, err);
        if (st == MTPLX_ERR_CANCELLED)
            st = MTPLX_OK;
        mtplx_status tail = finish_text(&s, err);
        st = st == MTPLX_OK ? tail : st;
        a->finish_reason = finish_reason(&s);
        a->stats = *mtplx_gen_get_stats(s.gen);
    }
    if (st == MTPLX_OK && (a->answer.failed || a->reasoning.failed))
        st = mx_error_nomem(err, "the answer", a->answer.len);
    mtplx_detok_free(s.detok);
    mtplx_gen_free(s.gen);
    mtplx_seq_free(s.seq);
    mx_reasoning_free(&s.parts);
    return st;
}

void mx_answer_free(struct mx_answer *a)
{
    mx_strbuf_free(&a->answer);
    mx_strbuf_free(&a->reasoning);
}
