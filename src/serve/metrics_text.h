/* Writing Prometheus's text format: a family's HELP and TYPE go before its samples. */
#ifndef MX_SERVE_METRICS_TEXT_H
#define MX_SERVE_METRICS_TEXT_H

#include "serve/metrics_int.h"

void mx_text_family(struct mx_strbuf *b, const char *name, const char *type, const char *help);
/* One sample with a label, whose value is escaped. */
void mx_text_labelled(struct mx_strbuf *b, const char *name, const char *key, const char *value,
                      uint64_t n);
/* Families of one sample. */
void mx_text_counter(struct mx_strbuf *b, const char *name, const char *help, uint64_t n);
void mx_text_gauge(struct mx_strbuf *b, const char *name, const char *help, double v);

/* What exists of bank, disk tier and turn alignment: metrics_bank.c. */
void mx_metrics_bank_text(struct mx_strbuf *out, const struct mx_app *app);

#endif
