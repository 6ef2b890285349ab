// The hash rules of the contract once more, in another language and on other libraries: what a TypeScript runtime
// needs, and the check that the published vectors do not merely repeat our own mistakes.
//
// node reference.mjs vectors.json   prints [{section, name, got, want}, …] for every vector that does not agree.

import { createHash, createPublicKey, verify } from "node:crypto";
import { readFileSync } from "node:fs";

const MAX_DEPTH = 128;

export function canonical(value, depth = 0) {
  if (depth > MAX_DEPTH) throw new RangeError("nested too deeply");
  if (typeof value === "string" && !value.isWellFormed()) throw new TypeError("a lone surrogate");
  if (typeof value === "number" && !Number.isFinite(value)) throw new TypeError("not a JSON number");
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map((item) => canonical(item, depth + 1)).join(",")}]`;
  const pairs = Object.keys(value)
    .sort() // by UTF-16 code units
    .map((key) => `${canonical(key)}:${canonical(value[key], depth + 1)}`);
  return `{${pairs.join(",")}}`;
}

export function contentHash(text) {
  return createHash("blake2b512").update(text, "utf8").digest("hex").slice(0, 16);
}

export function signedText(fields) {
  return canonical(Object.fromEntries(Object.entries(fields).filter(([name]) => name !== "sig")));
}

export function isSignedBy(fields, publicKey) {
  if (typeof fields.sig !== "string") return false;
  const signature = Buffer.from(fields.sig, "base64");
  if (signature.toString("base64") !== fields.sig) return false; // Node's decoder reads almost anything
  const x = Buffer.from(publicKey, "base64").toString("base64url");
  const key = createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x }, format: "jwk" });
  return verify(null, Buffer.from(signedText(fields), "utf8"), key, signature);
}

export function murmur2(bytes) {
  let hash = (0x9747b28c ^ bytes.length) | 0;
  const whole = bytes.length & ~3;
  for (let at = 0; at < whole; at += 4) {
    let word = Math.imul(bytes.readInt32LE(at), 0x5bd1e995);
    word ^= word >>> 24;
    hash = Math.imul(hash, 0x5bd1e995) ^ Math.imul(word, 0x5bd1e995);
  }
  if (whole < bytes.length) {
    for (let at = bytes.length - 1; at >= whole; at -= 1) hash ^= bytes[at] << (8 * (at - whole));
    hash = Math.imul(hash, 0x5bd1e995);
  }
  hash ^= hash >>> 13;
  hash = Math.imul(hash, 0x5bd1e995);
  return (hash ^ (hash >>> 15)) >>> 0;
}

export function probePoint(runId, epoch) {
  return parseInt(contentHash(canonical([runId, epoch])).slice(0, 13), 16) / 2 ** 52;
}

function disagreements(vectors) {
  const found = [];
  const expect = (section, name, got, want) => got === want || found.push({ section, name, got, want });
  for (const { name, json, canonical: text, hash } of vectors.canonical_json) {
    expect("canonical_json", name, canonical(JSON.parse(json)), text);
    expect("canonical_json", name, contentHash(text), hash);
  }
  // Numbers of this language cannot carry these integers: only the hash of the given text can be checked.
  for (const { name, canonical: text, hash } of vectors.canonical_json_beyond_rfc8785) {
    expect("canonical_json_beyond_rfc8785", name, contentHash(text), hash);
  }
  for (const { name, json } of vectors.canonical_json_refused) {
    let answer = "refused";
    try {
      answer = canonical(JSON.parse(json));
    } catch {
      // as it should be
    }
    expect("canonical_json_refused", name, answer, "refused");
  }
  for (const { bits, text } of vectors.numbers) {
    expect("numbers", bits, canonical(Buffer.from(bits, "hex").readDoubleBE(0)), text);
  }
  for (const { name, json, public_key, signed } of vectors.signatures) {
    expect("signatures", name, signedText(JSON.parse(json)), signed);
    expect("signatures", name, isSignedBy(JSON.parse(json), public_key), true);
  }
  for (const { name, json, public_key } of vectors.signatures_refused) {
    expect("signatures_refused", name, isSignedBy(JSON.parse(json), public_key), false);
  }
  for (const { bytes, hash } of vectors.murmur2) {
    expect("murmur2", bytes, murmur2(Buffer.from(bytes, "hex")), hash);
  }
  for (const { tenant, partitions, partition } of vectors.control_partition) {
    const got = (murmur2(Buffer.from(tenant, "utf8")) & 0x7fffffff) % partitions;
    expect("control_partition", tenant, got, partition);
  }
  for (const { run_id, epoch, share, hash, point, passes } of vectors.probe) {
    const name = `${run_id} ${epoch} ${share}`;
    expect("probe", name, contentHash(canonical([run_id, epoch])), hash);
    expect("probe", name, probePoint(run_id, epoch), point);
    expect("probe", name, probePoint(run_id, epoch) < share, passes);
  }
  return found;
}

if (process.argv.length > 2) {
  console.log(JSON.stringify(disagreements(JSON.parse(readFileSync(process.argv[2], "utf8")))));
}
