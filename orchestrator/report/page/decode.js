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
    const payload = JSON.parse(new TextDecoder().decode(await unpacked(base64)));
    for (const group of payload.groups) {
      for (const point of group.points) point.level ??= Infinity;  // all at once: JSON has no such number
    }
    return payload;
  }

  return { isPossible, unpacked, described };
})();
