// Random JSON schemas of the subset that strict mode takes, from a seed: depth, references, enums,
// numbers with bounds, arrays and strings with limits. Some are nasty on purpose: keys with quotes,
// blanks and other alphabets.

// Mulberry32: small, and the same everywhere.
export function random(seed) {
    let a = seed >>> 0;
    return () => {
        a = (a + 0x6d2b79f5) >>> 0;
        let t = Math.imul(a ^ (a >>> 15), a | 1);
        t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
        return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
}

const WORDS = ["name", "age", "city", "tags", "price", "is_open", "kind", "note", "x", "id"];
const ODD = ['a "quoted" key', "with blank", "größe", "世界", "back\\slash", "new\nline", "", "é"];
const PATTERNS = ["^[a-z]{2,6}$", "^\\d{1,6}-[A-F]$"];
const VALUES = ["red", "green", 'say "hi"', "ünï", "", 0, -1, 7.5, 1e21, true, false, null];

export function randomSchema(seed) {
    const next = random(seed);
    const int = (low, high) => low + Math.floor(next() * (high - low + 1));
    const pick = (list) => list[int(0, list.length - 1)];
    const maybe = (p) => next() < p;
    const defs = {};

    function names(n) {
        const set = new Set();
        while (set.size < n) set.add(maybe(0.1) ? pick(ODD) : pick(WORDS));
        return [...set];
    }

    function object(depth) {
        const properties = {};
        for (const name of names(int(depth > 2 ? 0 : 1, 4))) properties[name] = any(depth + 1);
        const required = Object.keys(properties);
        if (maybe(0.15)) required.pop(); // not strict, and allowed
        return { type: "object", properties, required, additionalProperties: false };
    }

    function array(depth) {
        const schema = { type: "array", items: any(depth + 1) };
        if (maybe(0.5)) schema.minItems = int(0, 2);
        schema.maxItems = (schema.minItems ?? 0) + int(0, 2);
        return schema;
    }

    function string() {
        const schema = { type: "string" };
        if (maybe(0.3)) schema.minLength = int(0, 5);
        schema.maxLength = (schema.minLength ?? 0) + int(0, 12);
        if (maybe(0.2)) return { type: "string", pattern: pick(PATTERNS) };
        return schema;
    }

    function number() {
        const schema = { type: maybe(0.6) ? "integer" : "number" };
        if (maybe(0.4)) schema.minimum = int(-20, 20);
        if (maybe(0.4)) schema.maximum = (schema.minimum ?? -20) + int(0, 1000);
        if (maybe(0.1)) schema.exclusiveMinimum = (schema.minimum ?? 0) - 1;
        if (maybe(0.1) && schema.type === "integer") schema.multipleOf = pick([1, 2, 5]);
        if (schema.multipleOf && schema.maximum !== undefined) schema.maximum += 10;
        return schema;
    }

    // Half of the references are lists: an object that may hold another of its kind.
    function reference(depth) {
        const name = "d" + Object.keys(defs).length;
        const ref = { $ref: "#/$defs/" + name };
        defs[name] = {};
        defs[name] = object(depth + 1);
        if (maybe(0.5)) {
            defs[name].properties.next = { anyOf: [{ type: "null" }, ref] };
            defs[name].required = Object.keys(defs[name].properties);
        }
        return ref;
    }

    function any(depth) {
        const deep = depth < 4;
        const roll = next();
        if (deep && roll < 0.15) return object(depth);
        if (deep && roll < 0.3) return array(depth);
        if (deep && roll < 0.38) return { anyOf: [any(depth + 1), any(depth + 1)] };
        if (deep && roll < 0.45) return reference(depth);
        if (roll < 0.55) return { enum: [...new Set([pick(VALUES), pick(VALUES), pick(VALUES)])] };
        if (roll < 0.6) return { const: pick(VALUES) };
        if (roll < 0.66) return { type: "boolean" };
        if (roll < 0.7) return { type: "null" };
        if (roll < 0.75) return { type: ["string", "null"], maxLength: 8 };
        return maybe(0.5) ? string() : number();
    }

    const schema = object(0);
    if (Object.keys(defs).length > 0) schema.$defs = defs;
    return schema;
}
