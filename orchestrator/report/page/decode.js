"use strict";
/* Reads what payload.py packed into the page: compressed bytes, written as base64. */
const decode = (() => {
  function bytesOf(base64) {
    if (Uint8Array.fromBase64 !== undefined) return Uint8Array.fromBase64(base64);
    const characters = atob(base64);
    const bytes = new Uint8Array(characters.length);
    for (let index = 0; index < bytes.length; index++) bytes[index] = characters.charCodeAt(index);
    return bytes;
  }

  /* Whether this browser can read the payload (all can since 2023). */
  function isPossible() {
    return typeof DecompressionStream !== "undefined";
  }

  /* The bytes that were packed. */
  async function unpacked(base64) {
    const compressed = new Response(bytesOf(base64)).body;
    const stream = compressed.pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  /* The description that was packed, as payload.py's records name its fields. */
  async function described(base64) {
    return withLevels(await record(base64));
  }

  /* The JSON that was packed. */
  async function record(base64) {
    return JSON.parse(new TextDecoder().decode(await unpacked(base64)));
  }

  /* All at once is the level that JSON has no number for. */
  function withLevels(payload) {
    for (const missing of payload.missing) missing.level ??= Infinity;
    for (const group of payload.groups) {
      for (const point of group.points) point.level ??= Infinity;
    }
    return payload;
  }

  /* The description as Payload.lines writes it. */
  function describedByLines(lines) {
    const payload = { missing: [], groups: [] };
    for (const line of lines) {
      const { head, missing, group, deployment, point } = JSON.parse(line);
      if (head !== undefined) Object.assign(payload, head);
      if (missing !== undefined) payload.missing.push(missing);
      if (group !== undefined) payload.groups.push(group);
      if (deployment !== undefined) payload.groups.at(-1).deployments.push(deployment);
      if (point !== undefined) payload.groups.at(-1).points.push(point);
    }
    return withLevels(payload);
  }

  return { isPossible, unpacked, record, described, describedByLines };
})();
