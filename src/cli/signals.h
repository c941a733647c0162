/* Interrupts: the one piece of global state of the program.
 *
 * The first SIGINT or SIGTERM only sets a flag, which long work polls; the default action is
 * restored at the same time, so a second one ends the program at once. SIGPIPE is ignored: a write
 * to a closed pipe fails with EPIPE instead. */
#ifndef MX_CLI_SIGNALS_H
#define MX_CLI_SIGNALS_H

#include <stdatomic.h>
#include <stdbool.h>

void mx_cli_signals_install(void);

/* The number of the signal that came, or 0. */
int mx_cli_signal(void);

/* The same as a flag to hand to mtplx_gen_options and the like. */
const volatile int *mx_cli_cancel_flag(void);

/* The same for what polls an atomic flag. */
const atomic_bool *mx_cli_stop_flag(void);

/* Exit code for an interrupted command: 130 after SIGINT, 143 after SIGTERM, 0 after neither. */
int mx_cli_signal_exit(void);

#endif
