/* Output of the program: unbuffered, checked, and fit for a terminal. */
#include "cli/out.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void mx_cli_out_guard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) != -1 || errno != EBADF)
            continue;
        /* open() returns the lowest free descriptor, which is `fd`. */
        if (open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            _exit(1);
    }
}

static bool env_says_plain(const char *name)
{
    const char *v = getenv(name);
    return v && *v;
}

void mx_cli_out_init(struct mx_cli_out *out, int fd, bool no_color)
{
    const char *term = getenv("TERM");
    *out = (struct mx_cli_out){.fd = fd, .tty = isatty(fd) == 1};
    out->color = out->tty && !no_color && !env_says_plain("NO_COLOR") &&
                 !env_says_plain("MTPLX_NO_COLOR") && term && strcmp(term, "dumb") != 0;
}

bool mx_cli_write(struct mx_cli_out *out, const char *s, size_t n)
{
    while (n > 0 && !out->error) {
        ssize_t w = write(out->fd, s, n);
        if (w >= 0) {
            s += w;
            n -= (size_t)w;
        } else if (errno != EINTR) {
            out->error = errno;
        }
    }
    return !out->error;
}

bool mx_cli_puts(struct mx_cli_out *out, const char *s)
{
    return mx_cli_write(out, s, strlen(s));
}

bool mx_cli_printf(struct mx_cli_out *out, const char *fmt, ...)
{
    char small[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof small)
        return mx_cli_write(out, small, (size_t)n);

    char *big = n < 0 ? NULL : malloc((size_t)n + 1);
    if (!big) {
        out->error = ENOMEM;
        return false;
    }
    va_start(ap, fmt);
    vsnprintf(big, (size_t)n + 1, fmt, ap);
    va_end(ap);
    bool ok = mx_cli_write(out, big, (size_t)n);
    free(big);
    return ok;
}

/* Bytes of the control character at s, 0 when it is none: C0 but \n and \t, DEL, or C1 (U+0080 to
 * U+009F, which is C2 80 to C2 9F in UTF-8). */
static size_t control_bytes(const unsigned char *s, size_t n)
{
    if ((s[0] < 0x20 && s[0] != '\n' && s[0] != '\t') || s[0] == 0x7f)
        return 1;
    return n >= 2 && s[0] == 0xc2 && s[1] >= 0x80 && s[1] <= 0x9f ? 2 : 0;
}

bool mx_cli_write_model_text(struct mx_cli_out *out, const char *s, size_t n)
{
    size_t start = 0, i = 0;
    if (!out->tty)
        return mx_cli_write(out, s, n);
    while (i < n) {
        size_t bad = control_bytes((const unsigned char *)s + i, n - i);
        if (bad) {
            mx_cli_write(out, s + start, i - start);
            start = i + bad;
        }
        i += bad ? bad : 1;
    }
    return mx_cli_write(out, s + start, n - start);
}

bool mx_cli_dim(struct mx_cli_out *out, bool on)
{
    return !out->color || mx_cli_puts(out, on ? "\033[2m" : "\033[0m");
}

int mx_cli_out_finish(struct mx_cli_out *out, int rc)
{
    /* Some file systems report a failed write only when the file is closed. */
    if (!out->error && close(out->fd) != 0 && errno != EINTR)
        out->error = errno;
    if (!out->error || rc >= 128)
        return rc;
    if (out->error != EPIPE)
        mx_cli_complain(NULL, "cannot write to standard output: %s", strerror(out->error));
    return 1;
}

void mx_cli_complain(const char *who, const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, who ? "mtplx %s: " : "mtplx: ", who);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}
