/* Weight traffic of a pass, counted where it happens: while a meter is attached, every matrix that
 * the model hands to the device is counted at its stored size. So nothing is assumed about a
 * family: a tied head counts when it is multiplied, the embedding counts the rows that were looked
 * up, and the MTP head is in the figures of a draft step only.
 *
 * A device may keep repacked copies of matrices; they are counted at their stored size all the
 * same. The KV cache and activations are not counted. */
#ifndef MX_TOOLS_BENCH_METER_H
#define MX_TOOLS_BENCH_METER_H

#include "device/device.h"

struct mx_meter {
    struct mx_device_ops ops; /* first: the device's table points here while attached */
    const struct mx_device_ops *real;
    struct mx_device *device;
    uint64_t bytes; /* of weights, each once per call that reads it */
    uint64_t flops; /* 2 per weight and row */
};

/* Between these the model must be used by the calling thread only. */
void mx_meter_attach(struct mx_meter *m, struct mx_device *d);
void mx_meter_detach(struct mx_meter *m);

#endif
