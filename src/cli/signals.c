/* Interrupts: the one piece of global state of the program. */
#include "cli/signals.h"

#include <signal.h>
#include <stddef.h>

_Static_assert(_Generic((sig_atomic_t)0, int : 1, default : 0), "the library polls an int");

static volatile sig_atomic_t caught;
static atomic_bool stopped; /* lock-free, so a handler may store to it */

static void on_signal(int number)
{
    caught = number;
    atomic_store_explicit(&stopped, true, memory_order_relaxed);
}

void mx_cli_signals_install(void)
{
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    struct sigaction ignore = {.sa_handler = SIG_IGN}, old;
    sigemptyset(&act.sa_mask);
    sigemptyset(&ignore.sa_mask);
    const int ours[] = {SIGINT, SIGTERM};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        /* A background job of a plain shell has SIGINT ignored; that choice is respected. */
        if (sigaction(ours[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(ours[i], &act, NULL);
    }
    sigaction(SIGPIPE, &ignore, NULL);
}

int mx_cli_signal(void)
{
    return caught;
}

const volatile int *mx_cli_cancel_flag(void)
{
    return &caught;
}

const atomic_bool *mx_cli_stop_flag(void)
{
    return &stopped;
}

int mx_cli_signal_exit(void)
{
    return caught ? 128 + caught : 0;
}
