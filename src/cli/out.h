/* Output of the program: unbuffered, checked, and fit for a terminal.
 *
 * Every byte that a command promises goes through mx_cli_write(), which remembers the first error,
 * so that a full disk or a closed pipe is noticed at once and ends in a non-zero exit code. */
#ifndef MX_CLI_OUT_H
#define MX_CLI_OUT_H

#include <stdbool.h>
#include <stddef.h>

struct mx_cli_out {
    int fd;
    bool tty;
    bool color; /* escape sequences are welcome */
    int error;  /* errno of the first failed write, or 0 */
};

/* Opens /dev/null, the wrong way round so that using it fails, in place of standard descriptors
 * that are closed: otherwise a model file opened later could become "standard output". */
void mx_cli_out_guard_descriptors(void);

/* Colour is off for a non-terminal, TERM=dumb, a non-empty NO_COLOR or MTPLX_NO_COLOR, or when
 * `no_color` is set. */
void mx_cli_out_init(struct mx_cli_out *out, int fd, bool no_color);

/* False once anything failed. */
bool mx_cli_write(struct mx_cli_out *out, const char *s, size_t n);
bool mx_cli_puts(struct mx_cli_out *out, const char *s);
bool mx_cli_printf(struct mx_cli_out *out, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Text that a model wrote: on a terminal, control characters other than newline and tab are left
 * out, for an escape sequence in an answer must not drive the user's terminal. `s` must hold whole
 * UTF-8 characters. */
bool mx_cli_write_model_text(struct mx_cli_out *out, const char *s, size_t n);

/* Starts or ends dimmed text where colour is on. */
bool mx_cli_dim(struct mx_cli_out *out, bool on);

/* The exit code of the program: `rc`, or 1 when a write had failed, which is reported on standard
 * error unless the reader just went away. An interrupt (130, 143) keeps its code. */
int mx_cli_out_finish(struct mx_cli_out *out, int rc);

/* "mtplx: " or "mtplx WHO: ", one sentence and a newline on standard error. */
void mx_cli_complain(const char *who, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
