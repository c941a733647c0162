/* The section "depth" of the learned state: times and acceptance of a model on a machine.
 *
 *   {"level": log ns, "spread": x,
 *    "verify": [[n-th node's log time or null, ...] for each context], "first": .., "next": ..,
 *    "tested": [..], "accepted": [..], "copy_tested": [..], "copy_accepted": [..]}
 *
 * Times are relative to the level, which is learned anew in the first cycles. Whatever is not a
 * number in its range is left out. */
#include "runtime/depth.h"

#include <math.h>

enum { TRUST = 3 }; /* samples that a stored time counts for */

static const char *const kind_names[MX_COST_KINDS] = {"verify", "first", "next"};

static bool number(const json_t *v, double low, double high, double *out)
{
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= low && x <= high))
        return false;
    *out = x;
    return true;
}

/* ---- Reading ------------------------------------------------------------------------------ */

static void read_node(struct mx_cost_node *k, const json_t *v)
{
    double at;
    if (number(v, -12, 12, &at))
        *k = (struct mx_cost_node){.at = at, .first = {at, at, at}, .samples = TRUST};
}

static void read_costs(struct mx_costs *c, const json_t *section)
{
    /* Times mean something only together with their level: a nanosecond to a quarter of an hour. */
    if (!number(json_object_get(section, "level"), 0, 28, &c->level))
        return;
    if (!number(json_object_get(section, "spread"), 0.01, 0.3, &c->spread))
        c->spread = 0.1;
    c->samples = TRUST;
    for (int kind = 0; kind < MX_COST_KINDS; kind++)
        for (size_t b = 0; b < MX_COST_CONTEXTS; b++)
            for (size_t i = 0; i < MX_COST_NODES; i++) {
                const json_t *row = json_array_get(json_object_get(section, kind_names[kind]), b);
                read_node(&c->nodes[b][kind][i], json_array_get(row, i));
            }
}

/* Pairs of discounted counts: 0 <= accepted <= tested <= 200, the most that the discounts allow. */
static void read_counts(const json_t *section, const char *tested, const char *accepted, size_t n,
                        double *t, double *a)
{
    for (size_t i = 0; i < n; i++) {
        double x, y;
        if (number(json_array_get(json_object_get(section, tested), i), 0, 201, &x) &&
            number(json_array_get(json_object_get(section, accepted), i), 0, x, &y)) {
            t[i] = x;
            a[i] = y;
        }
    }
}

void mx_depth_model_read(struct mx_depth_model *m, const json_t *section)
{
    read_costs(&m->costs, section);
    read_counts(section, "tested", "accepted", MTPLX_MAX_DEPTH, m->record.tested,
                m->record.accepted);
    read_counts(section, "copy_tested", "copy_accepted", MX_COPY_CLASSES, m->copies.tested,
                m->copies.accepted);
}

/* ---- Writing ------------------------------------------------------------------------------ */

static json_t *write_nodes(const struct mx_costs *c, int kind)
{
    json_t *all = json_array();
    for (int b = 0; b < MX_COST_CONTEXTS; b++) {
        json_t *row = json_array();
        for (int i = 0; i < MX_COST_NODES; i++) {
            const struct mx_cost_node *k = &c->nodes[b][kind][i];
            json_array_append_new(row, k->samples > 0 ? json_real(k->at) : json_null());
        }
        json_array_append_new(all, row);
    }
    return all;
}

static json_t *write_counts(const double *v, size_t n)
{
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(all, json_real(v[i]));
    return all;
}

json_t *mx_depth_model_write(const struct mx_depth_model *m)
{
    json_t *o = json_object();
    json_object_set_new(o, "level", json_real(m->costs.level));
    json_object_set_new(o, "spread", json_real(m->costs.spread));
    for (int kind = 0; kind < MX_COST_KINDS; kind++)
        json_object_set_new(o, kind_names[kind], write_nodes(&m->costs, kind));
    json_object_set_new(o, "tested", write_counts(m->record.tested, MTPLX_MAX_DEPTH));
    json_object_set_new(o, "accepted", write_counts(m->record.accepted, MTPLX_MAX_DEPTH));
    json_object_set_new(o, "copy_tested", write_counts(m->copies.tested, MX_COPY_CLASSES));
    json_object_set_new(o, "copy_accepted", write_counts(m->copies.accepted, MX_COPY_CLASSES));
    return o;
}
