/* Command-line flags, driven by one table per command.
 *
 * The same table row gives a flag its name, its value's kind and range, the environment variable
 * that sets it and its help text, so the four can not drift apart.
 *
 *   --flag VALUE and --flag=VALUE are the same; `--` ends the flags.
 *   A flag may be shortened to any unique prefix.
 *   A switch that is `negatable` also exists as --no-NAME. Switches accept =yes and =no words.
 *   An explicit flag beats the environment; of a repeated flag the last one counts, unless the
 *   flag is one that `repeats`. An environment
 *   variable that is set to nothing counts as unset.
 *   An argument that starts with a dash but cannot be a flag (a negative number, a lone dash, or a
 *   name with blanks in it) is an ordinary word.
 *
 * Numbers are read in the C locale: the program never calls setlocale(). This file depends on the
 * C library and suggest.c only. */
#ifndef MX_CLI_ARGS_H
#define MX_CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mx_cli_kind {
    MX_CLI_SWITCH = 1,
    MX_CLI_INT,    /* integer in [min, max] */
    MX_CLI_UINT64, /* any 64-bit unsigned integer */
    MX_CLI_REAL,   /* finite number in [min, max], or (min, max] with `above_min` */
    MX_CLI_TEXT,   /* any string but the empty one, unless `may_be_empty` */
    MX_CLI_CHOICE, /* one of `choices`; its numeric value, if it has one, is in `integer` */
};

struct mx_cli_flag {
    const char *name; /* without the dashes */
    enum mx_cli_kind kind;
    char letter;    /* one-letter form, or 0 */
    bool negatable; /* SWITCH: --no-NAME exists too */
    bool above_min;
    bool may_be_empty;
    bool repeats; /* TEXT: every one counts, see `repeated` */
    double min, max;
    const char *choices;  /* words separated by single blanks */
    const char *env;      /* environment variable, or NULL */
    const char *value;    /* placeholder in the help text */
    const char *fallback; /* what holds when it is not given, for the help text; or NULL */
    const char *help;
};

enum mx_cli_source {
    MX_CLI_DEFAULT = 0, /* not given: the other members are zero */
    MX_CLI_ENVIRONMENT,
    MX_CLI_EXPLICIT,
};

struct mx_cli_value {
    enum mx_cli_source source;
    bool on;
    int64_t integer;
    uint64_t natural;
    double real;
    const char *text; /* as written; borrowed from argv or the environment */
};

enum { MX_CLI_MAX_FLAGS = 80, MX_CLI_MAX_REPEATED = 64 };

struct mx_cli_args {
    struct mx_cli_value values[MX_CLI_MAX_FLAGS]; /* parallel to the table */
    struct mx_cli_repeated {
        int flag;
        const char *text;
    } repeated[MX_CLI_MAX_REPEATED]; /* values of flags that repeat, in order */
    int n_repeated;
    bool help;     /* --help, which every command has */
    bool no_color; /* --no-color, likewise */
    char **words;  /* what is not a flag; a prefix of argv */
    int n_words;
    char error[400]; /* one sentence when parsing failed */
};

/* The flags that every command has: --help and --no-color. */
extern const struct mx_cli_flag mx_cli_common_flags[];
extern const int mx_cli_common_count;

/* Parses argv[0..argc) (without the program and command names), compacting the words to its front.
 * With `stop_at_word` everything from the first word on is left alone. False with out->error set on
 * a usage error. The environment is looked at last, and not at all once --help was seen. */
bool mx_cli_parse(const struct mx_cli_flag *flags, int n_flags, bool stop_at_word, int argc,
                  char **argv, struct mx_cli_args *out);

/* Reads a boolean word (1/true/yes/on/enable/enabled, 0/false/no/off/disable/disabled, any case).
 * False when it is neither. */
bool mx_cli_bool_word(const char *word, bool *on);

#endif
