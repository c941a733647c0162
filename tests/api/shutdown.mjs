// Holds a metrics stream open while the server is told to stop: run.sh starts this, waits for
// "open", sends SIGTERM, and wants "ended": the reply's orderly end, not a broken connection.
import { get } from "./lib.mjs";

const reply = await get("/v1/mtplx/metrics/stream");
let announced = false;
for await (const piece of reply.body) {
    if (!announced && piece.length > 0) console.log("open");
    announced = true;
}
console.log("ended");
