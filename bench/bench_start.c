/* Cold start of a command: time from fork to its first byte on stdout and to its end, and its peak
 * memory, as medians over runs.
 *
 *   bench_start RUNS COMMAND [ARG ...]
 *   e.g. bench_start 15 build/mtplx ask --max-tokens 8 Hi
 */
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

struct sample {
    double first_ms, total_ms, peak_mb;
};

static int run_once(char **argv, struct sample *s)
{
    int fd[2], status;
    char buf[4096];
    struct rusage ru;
    uint64_t t0 = mx_now_ns(), first = 0;
    if (pipe(fd) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fd[1], 1);
        close(fd[0]);
        close(fd[1]);
        execvp(argv[0], argv);
        _exit(127);
    }
    close(fd[1]);
    while (pid > 0 && read(fd[0], buf, sizeof buf) > 0)
        if (!first)
            first = mx_now_ns();
    close(fd[0]);
    if (pid < 0 || wait4(pid, &status, 0, &ru) != pid || !WIFEXITED(status) || WEXITSTATUS(status))
        return -1;
    s->first_ms = first ? (double)(first - t0) / 1e6 : 0;
    s->total_ms = (double)(mx_now_ns() - t0) / 1e6;
    s->peak_mb = (double)ru.ru_maxrss / 1024;
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *what, double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    printf("%-24s min %.1f  median %.1f  max %.1f\n", what, v[0], v[n / 2], v[n - 1]);
}

int main(int argc, char **argv)
{
    enum { MOST = 1000 };
    static double first[MOST], total[MOST], peak[MOST];
    int n = argc > 2 ? (int)strtol(argv[1], NULL, 10) : 0;
    if (n < 1 || n > MOST) {
        fprintf(stderr, "usage: bench_start RUNS COMMAND [ARG ...]\n");
        return 2;
    }
    for (int i = 0; i < n; i++) {
        struct sample s;
        if (run_once(argv + 2, &s) != 0) {
            fprintf(stderr, "bench_start: '%s' failed\n", argv[2]);
            return 1;
        }
        first[i] = s.first_ms;
        total[i] = s.total_ms;
        peak[i] = s.peak_mb;
    }
    report("first output, ms", first, n);
    report("whole run, ms", total, n);
    report("peak memory, MiB", peak, n);
    return 0;
}
