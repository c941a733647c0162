/* Command-line flags, driven by one table per command. */
#include "cli/args.h"

#include "cli/suggest.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const struct mx_cli_flag mx_cli_common_flags[] = {
    {.name = "no-color", .kind = MX_CLI_SWITCH, .help = "Plain text, also on a terminal."},
    {.name = "help", .kind = MX_CLI_SWITCH, .letter = 'h', .help = "Show this help."},
};
const int mx_cli_common_count = sizeof mx_cli_common_flags / sizeof *mx_cli_common_flags;

/* The longest name that is looked up; a longer one is certainly a mistake. */
enum { MAX_NAME = 60 };

struct parser {
    const struct mx_cli_flag *flags;
    int n_flags;
    int argc;
    char **argv;
    int next; /* index of the first argument not yet read */
    struct mx_cli_args *out;
};

/* A flag as it was written. */
struct match {
    const struct mx_cli_flag *flag;
    int index; /* into out->values; of a common flag: n_flags and up */
    bool negated;
};

static bool fail(struct mx_cli_args *out, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static bool fail(struct mx_cli_args *out, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out->error, sizeof out->error, fmt, ap);
    va_end(ap);
    return false;
}

/* ---- Values ------------------------------------------------------------------------------- */

bool mx_cli_bool_word(const char *word, bool *on)
{
    static const char *const yes[] = {"1", "true", "yes", "on", "enable", "enabled"};
    static const char *const no[] = {"0", "false", "no", "off", "disable", "disabled"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
        bool is_yes = strcasecmp(word, yes[i]) == 0;
        if (is_yes || strcasecmp(word, no[i]) == 0) {
            *on = is_yes;
            return true;
        }
    }
    return false;
}

/* The user's text may be long; messages quote at most this much of it. */
#define QUOTED "'%.60s%s'"
#define QUOTE(s) (s), (strlen(s) > 60 ? "..." : "")

static bool read_int(const struct mx_cli_flag *f, const char *label, const char *s,
                     struct mx_cli_value *v, struct mx_cli_args *out)
{
    char *end;
    errno = 0;
    long long n = strtoll(s, &end, 10);
    bool ok = end != s && *end == '\0' && errno == 0 && !isspace((unsigned char)s[0]);
    if (!ok || (double)n < f->min || (double)n > f->max)
        return fail(out, "%s takes an integer from %.0f to %.0f, not " QUOTED, label, f->min,
                    f->max, QUOTE(s));
    v->integer = n;
    return true;
}

static bool read_uint64(const char *label, const char *s, struct mx_cli_value *v,
                        struct mx_cli_args *out)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(s, &end, 10);
    if (!isdigit((unsigned char)s[0]) || *end != '\0' || errno != 0)
        return fail(out, "%s takes an integer from 0 to 18446744073709551615, not " QUOTED, label,
                    QUOTE(s));
    v->natural = n;
    return true;
}

static bool read_real(const struct mx_cli_flag *f, const char *label, const char *s,
                      struct mx_cli_value *v, struct mx_cli_args *out)
{
    char *end;
    double x = strtod(s, &end);
    bool ok = *s && *end == '\0' && isfinite(x) && s[strspn(s, "0123456789.eE+-")] == '\0';
    if (!ok || x > f->max || x < f->min || (f->above_min && x <= f->min))
        return fail(out, "%s takes a number %s %g%s %g, not " QUOTED, label,
                    f->above_min ? "above" : "from", f->min, f->above_min ? " and up to" : " to",
                    f->max, QUOTE(s));
    v->real = x;
    return true;
}

/* Writes "a, b or c" for "a b c". */
static void list_choices(const char *choices, char *buf, size_t size)
{
    size_t n = 0;
    const char *last = strrchr(choices, ' ');
    for (const char *p = choices; *p && n + 6 < size; p++) {
        if (*p != ' ') {
            buf[n++] = *p;
            continue;
        }
        const char *sep = p == last ? " or " : ", ";
        memcpy(buf + n, sep, strlen(sep));
        n += strlen(sep);
    }
    buf[n] = '\0';
}

static bool read_choice(const struct mx_cli_flag *f, const char *label, const char *s,
                        struct mx_cli_value *v, struct mx_cli_args *out)
{
    const char *choices = f->choices ? f->choices : "";
    size_t n = strlen(s);
    for (const char *p = strchr(s, ' ') ? NULL : choices; p && n > 0; p = strchr(p, ' ')) {
        p += *p == ' ';
        if (strncmp(p, s, n) == 0 && (p[n] == '\0' || p[n] == ' ')) {
            v->integer = strtoll(s, NULL, 10);
            return true;
        }
    }
    char list[120];
    list_choices(choices, list, sizeof list);
    return fail(out, "%s takes %s, not " QUOTED, label, list, QUOTE(s));
}

/* Reads a value for a flag; `label` is the flag as the user knows it here: "--depth" or the name of
 * the environment variable. */
static bool read_value(const struct mx_cli_flag *f, const char *label, const char *s,
                       enum mx_cli_source source, struct mx_cli_value *v, struct mx_cli_args *out)
{
    *v = (struct mx_cli_value){.source = source, .text = s};
    switch (f->kind) {
    case MX_CLI_SWITCH:
        if (mx_cli_bool_word(s, &v->on))
            return true;
        return fail(out, "%s takes on or off (or 1/0, true/false, yes/no), not " QUOTED, label,
                    QUOTE(s));
    case MX_CLI_INT: return read_int(f, label, s, v, out);
    case MX_CLI_UINT64: return read_uint64(label, s, v, out);
    case MX_CLI_REAL: return read_real(f, label, s, v, out);
    case MX_CLI_TEXT:
        if (*s || f->may_be_empty)
            return true;
        return fail(out, "%s needs a value that is not empty", label);
    case MX_CLI_CHOICE: return read_choice(f, label, s, v, out);
    }
    return fail(out, "%s has no kind", label);
}

/* ---- Names -------------------------------------------------------------------------------- */

static const struct mx_cli_flag *flag_at(const struct parser *p, int i)
{
    return i < p->n_flags ? &p->flags[i] : &mx_cli_common_flags[i - p->n_flags];
}

static int flag_count(const struct parser *p)
{
    return p->n_flags + mx_cli_common_count;
}

/* Spells one form of a flag, with dashes; false when the form does not exist. */
static bool spell(const struct mx_cli_flag *f, bool negated, char *buf, size_t size)
{
    if (negated && !f->negatable)
        return false;
    snprintf(buf, size, negated ? "--no-%s" : "--%s", f->name);
    return true;
}

static void ambiguous(struct parser *p, const char *typed)
{
    char list[240], form[MAX_NAME + 8];
    size_t n = 0;
    list[0] = '\0';
    for (int i = 0; i < 2 * flag_count(p); i++) {
        if (!spell(flag_at(p, i / 2), i % 2 == 1, form, sizeof form))
            continue;
        if (strncmp(form, typed, strlen(typed)) == 0 && n < sizeof list)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", form);
    }
    fail(p->out, "%s could mean any of %s", typed, list);
}

static void unknown(struct parser *p, const char *typed)
{
    char form[MAX_NAME + 8], kept[MAX_NAME + 8] = "";
    size_t distance = SIZE_MAX;
    for (int i = 0; i < 2 * flag_count(p); i++) {
        const char *best = NULL;
        if (!spell(flag_at(p, i / 2), i % 2 == 1, form, sizeof form))
            continue;
        mx_cli_suggest(typed, form, &best, &distance);
        if (best)
            memcpy(kept, form, sizeof kept);
    }
    if (kept[0])
        fail(p->out, "unknown flag %.60s; did you mean %s?", typed, kept);
    else
        fail(p->out, "unknown flag %.60s (put -- before a word that starts with a dash)", typed);
}

/* Finds the flag that `typed` ("--temp", no "=value") names, exactly or as a unique prefix. */
static bool find_flag(struct parser *p, const char *typed, struct match *m)
{
    char form[MAX_NAME + 8];
    int hits = 0;
    for (int i = 0; i < 2 * flag_count(p); i++) {
        const struct mx_cli_flag *f = flag_at(p, i / 2);
        if (!spell(f, i % 2 == 1, form, sizeof form) || strncmp(form, typed, strlen(typed)) != 0)
            continue;
        *m = (struct match){f, i / 2, i % 2 == 1};
        if (strcmp(form, typed) == 0)
            return true;
        hits++;
    }
    if (hits == 1 && m->flag)
        return true;
    if (hits > 1)
        ambiguous(p, typed);
    else
        unknown(p, typed);
    return false;
}

static bool find_letter(struct parser *p, char letter, struct match *m)
{
    for (int i = 0; i < flag_count(p); i++) {
        if (flag_at(p, i)->letter == letter) {
            *m = (struct match){flag_at(p, i), i, false};
            return true;
        }
    }
    fail(p->out, "unknown flag -%c (put -- before a word that starts with a dash)", letter);
    return false;
}

/* ---- Arguments ---------------------------------------------------------------------------- */

/* Dashes in front do not make a flag of "-5", "-", "-.5" or "- buy milk". */
static bool is_word(const char *arg)
{
    if (arg[0] != '-' || arg[1] == '\0')
        return true;
    if (isdigit((unsigned char)arg[1]) || arg[1] == '.')
        return true;
    size_t name = strcspn(arg, "=");
    return strcspn(arg, " \t\n") < name;
}

static bool store_switch(struct parser *p, const struct match *m, const char *label,
                         const char *value)
{
    struct mx_cli_value v = {.source = MX_CLI_EXPLICIT, .on = !m->negated};
    if (value && !read_value(m->flag, label, value, MX_CLI_EXPLICIT, &v, p->out))
        return false;
    if (value && m->negated)
        return fail(p->out, "%s takes no value", label);
    if (m->index < p->n_flags)
        p->out->values[m->index] = v;
    else if (m->flag->letter == 'h')
        p->out->help = v.on;
    else
        p->out->no_color = v.on;
    return true;
}

/* The value of a flag may stand in the next argument, unless that looks like a flag itself. */
static const char *take_value(struct parser *p, const char *label)
{
    if (p->next >= p->argc) {
        fail(p->out, "%s needs a value", label);
        return NULL;
    }
    const char *v = p->argv[p->next];
    if (v[0] == '-' && v[1] == '-' && !is_word(v)) {
        fail(p->out, "%s needs a value before %.40s (write %s=... for one that starts with dashes)",
             label, v, label);
        return NULL;
    }
    p->next++;
    return v;
}

static bool store(struct parser *p, const struct match *m, const char *value)
{
    char label[MAX_NAME + 8];
    spell(m->flag, m->negated, label, sizeof label);
    if (m->flag->kind == MX_CLI_SWITCH)
        return store_switch(p, m, label, value);
    if (!value)
        value = take_value(p, label);
    if (!value)
        return false;
    struct mx_cli_value *slot = &p->out->values[m->index];
    if (!read_value(m->flag, label, value, MX_CLI_EXPLICIT, slot, p->out))
        return false;
    if (!m->flag->repeats)
        return true;
    if (p->out->n_repeated == MX_CLI_MAX_REPEATED)
        return fail(p->out, "%s is given too often", label);
    p->out->repeated[p->out->n_repeated++] = (struct mx_cli_repeated){m->index, value};
    return true;
}

static bool parse_long(struct parser *p, const char *arg)
{
    char typed[MAX_NAME + 1];
    struct match m = {0};
    size_t n = strcspn(arg, "=");
    if (n > MAX_NAME)
        return fail(p->out, "unknown flag %.60s...", arg);
    memcpy(typed, arg, n);
    typed[n] = '\0';
    return find_flag(p, typed, &m) && store(p, &m, arg[n] ? arg + n + 1 : NULL);
}

/* "-m DIR", "-mDIR" or "-h"; letters are not bundled. */
static bool parse_short(struct parser *p, const char *arg)
{
    struct match m = {0};
    if (!find_letter(p, arg[1], &m))
        return false;
    const char *rest = arg[2] ? arg + 2 : NULL;
    if (rest && m.flag->kind == MX_CLI_SWITCH)
        return fail(p->out, "unknown flag %.60s (one-letter flags are not joined)", arg);
    return store(p, &m, rest && *rest == '=' ? rest + 1 : rest);
}

static bool read_environment(struct parser *p)
{
    for (int i = 0; i < p->n_flags; i++) {
        const struct mx_cli_flag *f = &p->flags[i];
        struct mx_cli_value *v = &p->out->values[i];
        const char *s = f->env && v->source == MX_CLI_DEFAULT ? getenv(f->env) : NULL;
        if (s && *s && !read_value(f, f->env, s, MX_CLI_ENVIRONMENT, v, p->out))
            return false;
    }
    return true;
}

bool mx_cli_parse(const struct mx_cli_flag *flags, int n_flags, bool stop_at_word, int argc,
                  char **argv, struct mx_cli_args *out)
{
    struct parser p = {flags, n_flags, argc, argv, 0, out};
    *out = (struct mx_cli_args){.words = argv};
    if (n_flags > MX_CLI_MAX_FLAGS)
        return fail(out, "too many flags in a table");

    bool words_only = false;
    while (p.next < argc) {
        char *arg = argv[p.next++];
        if (!words_only && strcmp(arg, "--") == 0) {
            words_only = true;
        } else if (words_only || is_word(arg)) {
            out->words[out->n_words++] = arg;
            words_only = words_only || stop_at_word;
        } else if (!(arg[1] == '-' ? parse_long(&p, arg) : parse_short(&p, arg))) {
            return false;
        }
    }
    return out->help || read_environment(&p);
}
