/* The commands of the program: one table row and one file each. */
#ifndef MX_CLI_COMMANDS_H
#define MX_CLI_COMMANDS_H

#include "cli/args.h"
#include "cli/out.h"

/* Exit codes; an interrupt is 128 + the signal. */
enum {
    MX_EXIT_OK = 0,
    MX_EXIT_FAILURE = 1, /* something went wrong while working */
    MX_EXIT_USAGE = 2,   /* the command line asks for something that does not exist */
};

struct mx_cli_command {
    const char *name;     /* "ask", or "forge quantize" */
    const char *alias;    /* another name, or NULL */
    const char *operands; /* for the usage line: "PROMPT..." */
    const char *summary;  /* one line */
    const char *details;  /* paragraphs separated by blank lines, wrapped when printed */
    const struct mx_cli_flag *flags;
    int n_flags;
    int min_words, max_words; /* max_words -1: any number */
    int (*run)(const struct mx_cli_args *args, struct mx_cli_out *out);
};

extern const struct mx_cli_command mx_cli_ask;
extern const struct mx_cli_command mx_cli_inspect;
extern const struct mx_cli_command mx_cli_serve;
extern const struct mx_cli_command mx_cli_stop;
extern const struct mx_cli_command mx_cli_bench;
extern const struct mx_cli_command mx_cli_forge_quantize;
extern const struct mx_cli_command mx_cli_cache_check;
extern const struct mx_cli_command mx_cli_cache_ls;
extern const struct mx_cli_command mx_cli_cache_gc;
extern const struct mx_cli_command mx_cli_cache_clear;

/* All of them, in the order in which help lists them. */
extern const struct mx_cli_command *const mx_cli_commands[];
extern const int mx_cli_command_count;

/* The command that argv starts with, and how many arguments its name takes; NULL when none does. */
const struct mx_cli_command *mx_cli_find_command(int argc, char *const *argv, int *used);

/* True when `word` is the first of a two-word command ("forge"). */
bool mx_cli_is_group(const char *word);

/* The command nearest to a mistyped one ("aks" or "forge quantise"), or NULL. argc >= 1. */
const char *mx_cli_nearest_command(int argc, char *const *argv);

#endif
