/* Help texts, made from the command tables. */
#include "cli/help.h"

#include "base/strbuf.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    WIDTH = 79,
    HELP_COLUMN = 26, /* where the text of a flag starts */
    NAME_COLUMN = 18, /* the same for commands and variables */
};

/* Appends `text` wrapped to WIDTH columns, continuation lines indented by `indent`; `column` is
 * where the cursor stands. A newline in the text is kept. */
static void wrap(struct mx_strbuf *b, const char *text, int indent, int column)
{
    bool fresh = true; /* at the start of a line: no blank before the next word */
    while (*text) {
        int n = (int)strcspn(text, " \n");
        if (n > 0) {
            if (!fresh && column + 1 + n > WIDTH) {
                mx_strbuf_printf(b, "\n%*s", indent, "");
                column = indent;
                fresh = true;
            }
            mx_strbuf_printf(b, "%s%.*s", fresh ? "" : " ", n, text);
            column += n + !fresh;
            fresh = false;
        }
        text += n;
        if (*text == '\n') {
            mx_strbuf_printf(b, "\n%*s", text[1] == '\n' ? 0 : indent, "");
            column = indent;
            fresh = true;
        }
        text += *text != '\0';
    }
    mx_strbuf_putc(b, '\n');
}

/* "  name      text", the text wrapped in its own column. */
static void entry(struct mx_strbuf *b, const char *name, const char *text, int column)
{
    int used = 2 + (int)strlen(name);
    mx_strbuf_printf(b, "  %s", name);
    if (used + 2 > column) {
        mx_strbuf_putc(b, '\n');
        used = 0;
    }
    mx_strbuf_printf(b, "%*s", column - used, "");
    wrap(b, text, column, column);
}

static void flag_entry(struct mx_strbuf *b, const struct mx_cli_flag *f)
{
    char name[120], text[700];
    const char *value = f->value ? f->value : f->choices ? "WORD" : "N";
    if (f->kind == MX_CLI_SWITCH && f->negatable)
        snprintf(name, sizeof name, "--%s, --no-%s", f->name, f->name);
    else if (f->kind == MX_CLI_SWITCH)
        snprintf(name, sizeof name, "--%s", f->name);
    else
        snprintf(name, sizeof name, "--%s %s", f->name, value);
    if (f->letter) {
        size_t n = strlen(name);
        snprintf(name + n, sizeof name - n, ", -%c", f->letter);
    }

    int n = snprintf(text, sizeof text, "%s", f->help);
    if (f->kind == MX_CLI_CHOICE)
        n += snprintf(text + n, sizeof text - (size_t)n, " One of: %s.", f->choices);
    if (f->fallback)
        n += snprintf(text + n, sizeof text - (size_t)n, " Default: %s.", f->fallback);
    if (f->env)
        snprintf(text + n, sizeof text - (size_t)n, " [%s]", f->env);
    entry(b, name, text, HELP_COLUMN);
}

static void command_flags(struct mx_strbuf *b, const struct mx_cli_command *c)
{
    for (int i = 0; i < c->n_flags; i++)
        flag_entry(b, &c->flags[i]);
}

static void common_flags(struct mx_strbuf *b)
{
    for (int i = 0; i < mx_cli_common_count; i++)
        flag_entry(b, &mx_cli_common_flags[i]);
}

static void flush(struct mx_strbuf *b, struct mx_cli_out *out)
{
    if (b->failed)
        out->error = ENOMEM;
    else
        mx_cli_write(out, b->data, b->len);
    mx_strbuf_free(b);
}

static void commands_list(struct mx_strbuf *b)
{
    mx_strbuf_puts(b, "Commands:\n");
    for (int i = 0; i < mx_cli_command_count; i++)
        entry(b, mx_cli_commands[i]->name, mx_cli_commands[i]->summary, NAME_COLUMN);
    entry(b, "help", "Help on a command, or on: commands, flags, environment.", NAME_COLUMN);
}

void mx_cli_help_overview(struct mx_cli_out *out)
{
    struct mx_strbuf b;
    mx_strbuf_init(&b, 0);
    mx_strbuf_puts(&b, "mtplx runs local language models that draft with their own\n"
                       "multi-token-prediction (MTP) head.\n\n"
                       "Usage: mtplx COMMAND [flags] ...\n\n");
    commands_list(&b);
    mx_strbuf_puts(&b, "\nStart with:\n"
                       "  mtplx ask \"Write a haiku about rain.\"\n\n"
                       "`mtplx help COMMAND` explains a command, `mtplx --version` says which\n"
                       "version this is.\n");
    flush(&b, out);
}

void mx_cli_help_command(const struct mx_cli_command *c, struct mx_cli_out *out)
{
    struct mx_strbuf b;
    mx_strbuf_init(&b, 0);
    mx_strbuf_printf(&b, "Usage: mtplx %s [flags]", c->name);
    if (c->operands && *c->operands)
        mx_strbuf_printf(&b, " %s", c->operands);
    mx_strbuf_puts(&b, "\n\n");
    wrap(&b, c->details, 0, 0);
    mx_strbuf_puts(&b, "\nFlags (any unique prefix will do; --flag=VALUE works too):\n");
    command_flags(&b, c);
    common_flags(&b);
    if (c->alias)
        mx_strbuf_printf(&b, "\n`mtplx %s` is the same command.\n", c->alias);
    flush(&b, out);
}

static void help_flags(struct mx_cli_out *out)
{
    struct mx_strbuf b;
    mx_strbuf_init(&b, 0);
    for (int i = 0; i < mx_cli_command_count; i++) {
        mx_strbuf_printf(&b, "Flags of mtplx %s:\n", mx_cli_commands[i]->name);
        command_flags(&b, mx_cli_commands[i]);
        mx_strbuf_putc(&b, '\n');
    }
    mx_strbuf_puts(&b, "Flags of every command:\n");
    common_flags(&b);
    mx_strbuf_puts(&b, "\nFlags of mtplx itself:\n");
    entry(&b, "--version", "Print the version.", HELP_COLUMN);
    flush(&b, out);
}

/* True when an earlier command already listed this variable. */
static bool listed(const char *env, int command)
{
    for (int i = 0; i < command; i++) {
        const struct mx_cli_command *c = mx_cli_commands[i];
        for (int k = 0; k < c->n_flags; k++) {
            if (c->flags[k].env && strcmp(c->flags[k].env, env) == 0)
                return true;
        }
    }
    return false;
}

static void help_environment(struct mx_cli_out *out)
{
    struct mx_strbuf b;
    char text[100];
    mx_strbuf_init(&b, 0);
    wrap(&b,
         "Environment variables give flags another default. A flag on the command line beats its "
         "variable, and a variable beats the checkpoint's own setting. Switches take 1, true, "
         "yes, on, enable or 0, false, no, off, disable.\n",
         0, 0);
    for (int i = 0; i < mx_cli_command_count; i++) {
        const struct mx_cli_command *c = mx_cli_commands[i];
        for (int k = 0; k < c->n_flags; k++) {
            if (!c->flags[k].env || listed(c->flags[k].env, i))
                continue;
            snprintf(text, sizeof text, "Sets --%s.", c->flags[k].name);
            entry(&b, c->flags[k].env, text, HELP_COLUMN + 4);
        }
    }
    entry(&b, "MTPLX_HOME", "Where models/nano, the built-in model, is looked for first.",
          HELP_COLUMN + 4);
    entry(&b, "MTPLX_STATE_DIR",
          "Where measured speed and acceptance are kept between runs, instead of the user's cache "
          "directory; off keeps nothing.",
          HELP_COLUMN + 4);
    entry(&b, "MTPLX_CPU", "Forces an instruction set: ref, generic, avx2, avx512, amx or neon.",
          HELP_COLUMN + 4);
    entry(&b, "NO_COLOR, MTPLX_NO_COLOR", "Set to anything: plain text.", HELP_COLUMN + 4);
    flush(&b, out);
}

static void help_commands(struct mx_cli_out *out)
{
    struct mx_strbuf b;
    mx_strbuf_init(&b, 0);
    commands_list(&b);
    flush(&b, out);
}

/* The commands of a group such as "forge". */
static void help_group(const char *group, struct mx_cli_out *out)
{
    struct mx_strbuf b;
    size_t n = strlen(group);
    mx_strbuf_init(&b, 0);
    mx_strbuf_printf(&b, "Usage: mtplx %s COMMAND [flags] ...\n\nCommands:\n", group);
    for (int i = 0; i < mx_cli_command_count; i++) {
        const struct mx_cli_command *c = mx_cli_commands[i];
        if (strncmp(c->name, group, n) == 0 && c->name[n] == ' ')
            entry(&b, c->name, c->summary, NAME_COLUMN);
    }
    flush(&b, out);
}

static int unknown_topic(int argc, char *const *argv)
{
    const char *near = mx_cli_nearest_command(argc, argv);
    mx_cli_complain("help", "there is no topic '%.40s'%s%s%s", argv[0],
                    near ? "; did you mean '" : " (see mtplx help)", near ? near : "",
                    near ? "'?" : "");
    return MX_EXIT_USAGE;
}

int mx_cli_help_topic(int argc, char *const *argv, struct mx_cli_out *out)
{
    int used;
    const struct mx_cli_command *c = mx_cli_find_command(argc, argv, &used);
    if (argc == 0 || strcmp(argv[0], "help") == 0)
        mx_cli_help_overview(out);
    else if (c)
        mx_cli_help_command(c, out);
    else if (mx_cli_is_group(argv[0]))
        help_group(argv[0], out);
    else if (strcmp(argv[0], "flags") == 0)
        help_flags(out);
    else if (strcmp(argv[0], "environment") == 0 || strcmp(argv[0], "env") == 0)
        help_environment(out);
    else if (strcmp(argv[0], "commands") == 0)
        help_commands(out);
    else
        return unknown_topic(argc, argv);
    return MX_EXIT_OK;
}
