/* mtplx: the program. Reads the flags before the command, finds the command, runs it.
 *
 * Exit codes: 0 ok, 1 failure, 2 wrong usage, 130 interrupted, 143 terminated; `inspect` has more.
 */
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/signals.h"

#include "mtplx.h"

#include <string.h>
#include <unistd.h>

enum { ROOT_VERSION, ROOT_FLAGS };

static const struct mx_cli_flag root_flags[ROOT_FLAGS] = {
    [ROOT_VERSION] = {.name = "version", .kind = MX_CLI_SWITCH, .help = "Print the version."},
};

static int usage_error(const char *who, const char *sentence)
{
    mx_cli_complain(who, "%s", sentence);
    return MX_EXIT_USAGE;
}

static int unknown_command(int argc, char *const *argv)
{
    const char *near = mx_cli_nearest_command(argc, argv);
    if (mx_cli_is_group(argv[0]) && argc < 2)
        mx_cli_complain(NULL, "'%s' needs to be told what to do (see mtplx help %s)", argv[0],
                        argv[0]);
    else if (mx_cli_is_group(argv[0]) && !near)
        mx_cli_complain(NULL, "'%s' has no command '%.40s' (see mtplx help %s)", argv[0], argv[1],
                        argv[0]);
    else
        mx_cli_complain(NULL, "unknown command '%.40s'%s%s%s", argv[0],
                        near ? "; did you mean '" : " (mtplx help lists the commands)",
                        near ? near : "", near ? "'?" : "");
    return MX_EXIT_USAGE;
}

static int run_command(const struct mx_cli_command *c, int argc, char **argv,
                       struct mx_cli_out *out)
{
    struct mx_cli_args args;
    if (!mx_cli_parse(c->flags, c->n_flags, false, argc, argv, &args))
        return usage_error(c->name, args.error);
    if (args.no_color)
        out->color = false;
    if (args.help) {
        mx_cli_help_command(c, out);
        return MX_EXIT_OK;
    }
    if (args.n_words > 0 && c->max_words == 0) {
        mx_cli_complain(c->name, "takes flags only, not '%.40s' (see mtplx help %s)", args.words[0],
                        c->name);
        return MX_EXIT_USAGE;
    }
    if (args.n_words < c->min_words || (c->max_words >= 0 && args.n_words > c->max_words)) {
        mx_cli_complain(c->name, "expected %s%s, got %d argument%s (see mtplx help %s)",
                        c->max_words == 1 ? "one operand: " : "these operands: ", c->operands,
                        args.n_words, args.n_words == 1 ? "" : "s", c->name);
        return MX_EXIT_USAGE;
    }
    return c->run(&args, out);
}

static int dispatch(int argc, char **argv, struct mx_cli_out *out)
{
    struct mx_cli_args root;
    if (!mx_cli_parse(root_flags, ROOT_FLAGS, true, argc, argv, &root))
        return usage_error(NULL, root.error);
    if (root.no_color)
        out->color = false;
    if (root.values[ROOT_VERSION].on) {
        mx_cli_printf(out, "mtplx %s\n", mtplx_version());
        return MX_EXIT_OK;
    }
    if (root.help || root.n_words == 0) {
        mx_cli_help_overview(out);
        return MX_EXIT_OK;
    }
    if (strcmp(root.words[0], "help") == 0)
        return mx_cli_help_topic(root.n_words - 1, root.words + 1, out);

    int used;
    const struct mx_cli_command *c = mx_cli_find_command(root.n_words, root.words, &used);
    if (c)
        return run_command(c, root.n_words - used, root.words + used, out);
    if (mx_cli_is_group(root.words[0]) && root.n_words > 1 &&
        (strcmp(root.words[1], "--help") == 0 || strcmp(root.words[1], "-h") == 0))
        return mx_cli_help_topic(1, root.words, out);
    return unknown_command(root.n_words, root.words);
}

int main(int argc, char **argv)
{
    struct mx_cli_out out;
    mx_cli_out_guard_descriptors();
    mx_cli_signals_install();
    mx_cli_out_init(&out, STDOUT_FILENO, false);
    int rc = argc > 0 ? dispatch(argc - 1, argv + 1, &out) : MX_EXIT_USAGE;
    return mx_cli_out_finish(&out, rc);
}
