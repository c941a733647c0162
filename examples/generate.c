/* Streams one answer of a model that drafts with its own MTP head: generate [MODEL]
 * MODEL is a checkpoint directory; without it, the checkpoint that ships with mtplx is used.
 * Build: cc generate.c $(pkg-config --cflags --libs mtplx) -o generate */
#include <mtplx.h>
#include <stdio.h>

static const char messages[] =
    "[{\"role\": \"user\", \"content\": \"What does a draft head do?\"}]";

/* Prints the text of the tokens that have come since the last call. */
static void stream(const mtplx_gen *gen, mtplx_detok *detok, size_t *shown)
{
    size_t count, len;
    const int32_t *tokens = mtplx_gen_tokens(gen, &count);
    for (; *shown < count; (*shown)++) {
        const char *piece = mtplx_detok_push(detok, tokens[*shown], &len);
        if (piece)
            fwrite(piece, 1, len, stdout);
    }
    fflush(stdout);
}

static bool answer(mtplx_model *model, mtplx_error *err)
{
    mtplx_gen_options options = {.depth = 3, .max_tokens = 120};
    mtplx_model_default_sampling(model, &options.sampling);
    options.sampling.temperature = 0; /* greedy: the same text every time */

    size_t len = 0, count = 0, shown = 0;
    char *text = mtplx_chat_render(model, messages, NULL, NULL, true, &len, err);
    int32_t *prompt = text ? mtplx_encode(model, text, len, false, &count, err) : NULL;
    mtplx_seq *seq = prompt ? mtplx_seq_new(model, err) : NULL;
    mtplx_gen *gen = seq ? mtplx_gen_new(seq, prompt, count, &options, err) : NULL;
    mtplx_detok *detok = gen ? mtplx_detok_new(model, true) : NULL;
    bool ok = detok != NULL;
    while (ok && mtplx_gen_finish(gen) == MTPLX_FINISH_NONE) {
        ok = mtplx_gen_step(gen, err) == MTPLX_OK;
        stream(gen, detok, &shown);
    }
    mtplx_detok_free(detok);
    mtplx_gen_free(gen);
    mtplx_seq_free(seq);
    mtplx_free(prompt);
    mtplx_free(text);
    return ok;
}

int main(int argc, char **argv)
{
    mtplx_error err = {.message = "out of memory"};
    char *shipped = argc > 1 ? NULL : mtplx_embedded_model_path(&err);
    const char *path = argc > 1 ? argv[1] : shipped;
    mtplx_model *model = path ? mtplx_model_load(path, NULL, &err) : NULL;
    bool ok = model && answer(model, &err);
    fprintf(ok ? stdout : stderr, "%s\n", ok ? "" : err.message);
    mtplx_model_free(model);
    mtplx_free(shipped);
    return ok ? 0 : 1;
}
