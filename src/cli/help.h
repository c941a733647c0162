/* Help texts, made from the command tables. No line is longer than 79 columns. */
#ifndef MX_CLI_HELP_H
#define MX_CLI_HELP_H

#include "cli/commands.h"

void mx_cli_help_overview(struct mx_cli_out *out);
void mx_cli_help_command(const struct mx_cli_command *c, struct mx_cli_out *out);

/* `mtplx help [TOPIC...]`; the topic is a command, "commands", "flags" or "environment". */
int mx_cli_help_topic(int argc, char *const *argv, struct mx_cli_out *out);

#endif
