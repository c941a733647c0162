/* The prompt of a one-shot command: its words, standard input, or both. */
#include "cli/prompt.h"

#include "base/utf8.h"
#include "cli/out.h"
#include "cli/signals.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATIENCE_MS = 3000 };

static bool stdin_has_text(void)
{
    struct stat st;
    if (fstat(STDIN_FILENO, &st) != 0)
        return false;
    return S_ISREG(st.st_mode) || S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode);
}

/* A pipe that was inherited and never closed would look like a hang; say what we wait for. */
static void explain_silence(void)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&p, 1, PATIENCE_MS) == 0)
        mx_cli_complain("ask", "reading the prompt from standard input (</dev/null to skip that)");
}

static mtplx_status read_stdin(struct mx_strbuf *text, mtplx_error *err)
{
    char buf[1 << 15];
    explain_silence();
    for (;;) {
        if (mx_cli_signal())
            return mx_error(err, MTPLX_ERR_CANCELLED, "interrupted");
        ssize_t n = read(STDIN_FILENO, buf, sizeof buf);
        if (n == 0)
            return MTPLX_OK;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return mx_error(err, MTPLX_ERR_IO, "cannot read standard input: %s", strerror(errno));
        if (text->len + (size_t)n > MX_PROMPT_MAX)
            return mx_error(err, MTPLX_ERR_LIMIT, "standard input holds more than %d MiB",
                            MX_PROMPT_MAX >> 20);
        if (!mx_strbuf_append(text, buf, (size_t)n))
            return mx_error_nomem(err, "the prompt", text->len + (size_t)n);
    }
}

static mtplx_status check_text(const char *what, const char *s, size_t n, mtplx_error *err)
{
    if (!mx_utf8_valid(s, n))
        return mx_error(err, MTPLX_ERR_FORMAT, "%s is not valid UTF-8 text", what);
    if (memchr(s, '\0', n))
        return mx_error(err, MTPLX_ERR_FORMAT, "%s holds a NUL byte, so it is not text", what);
    return MTPLX_OK;
}

static void join_words(char *const *words, int n_words, struct mx_strbuf *out)
{
    for (int i = 0; i < n_words; i++) {
        if (i > 0)
            mx_strbuf_putc(out, ' ');
        mx_strbuf_puts(out, words[i]);
    }
}

static bool all_blank(const struct mx_strbuf *b)
{
    for (size_t i = 0; i < b->len; i++) {
        if (!strchr(" \t\r\n", b->data[i]))
            return false;
    }
    return true;
}

/* Standard input appended to the words, without a byte order mark and its last newlines. */
static mtplx_status append_stdin(struct mx_strbuf *out, mtplx_error *err)
{
    struct mx_strbuf text;
    mx_strbuf_init(&text, 0);
    mtplx_status st = read_stdin(&text, err);
    if (st == MTPLX_OK && text.len > 0)
        st = check_text("standard input", text.data, text.len, err);
    while (text.len > 0 && (text.data[text.len - 1] == '\n' || text.data[text.len - 1] == '\r'))
        text.len--;
    size_t bom = text.len >= 3 && memcmp(text.data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    if (st == MTPLX_OK && text.len > bom) {
        if (out->len > 0)
            mx_strbuf_puts(out, "\n\n");
        mx_strbuf_append(out, text.data + bom, text.len - bom);
    }
    mx_strbuf_free(&text);
    return st;
}

mtplx_status mx_prompt_gather(char *const *words, int n_words, struct mx_strbuf *out,
                              mtplx_error *err)
{
    bool dash = n_words == 1 && strcmp(words[0], "-") == 0;
    bool piped = dash || stdin_has_text();
    mtplx_status st = MTPLX_OK;
    if (!dash)
        join_words(words, n_words, out);
    if (out->len > 0)
        st = check_text("the prompt", out->data, out->len, err);
    if (st == MTPLX_OK && piped)
        st = append_stdin(out, err);
    if (st != MTPLX_OK)
        return st;
    if (out->failed)
        return mx_error_nomem(err, "the prompt", out->len);
    if (!all_blank(out))
        return MTPLX_OK;
    return mx_error(err, MTPLX_ERR_ARGUMENT,
                    n_words > 0 || piped
                        ? "the prompt is empty"
                        : "no prompt: give it as words or through standard input, as in "
                          "mtplx ask \"Why is the sky blue?\"");
}
