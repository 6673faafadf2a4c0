// Runs Cloudflare's D1 (workerd, by miniflare) behind the one route of Cloudflare's HTTP API that a store asks.
//
// node d1_server.mjs FOLDER_OF_MINIFLARE PORT FOLDER_OF_DATABASES ACCOUNT TOKEN DATABASE...
// A line with "ready" says that it listens. It ends with the process whose pipe is its standard input.
import { createRequire } from "node:module";
import { join } from "node:path";

const [folder, port, databases, account, token, ...names] = process.argv.slice(2);
const { Miniflare } = createRequire(join(folder, "package.json"))("miniflare");

const worker = `
const ACCOUNT = ${JSON.stringify(account)}, TOKEN = ${JSON.stringify(token)};
const PATH = /^\\/client\\/v4\\/accounts\\/([^/]+)\\/d1\\/database\\/([^/]+)\\/query$/;

function answer(status, body) {
  return new Response(JSON.stringify({ success: status === 200, errors: [], messages: [], result: null, ...body }), {
    status, headers: { "content-type": "application/json" },
  });
}

function refuse(status, code, message) {
  return answer(status, { errors: [{ code, message }] });
}

export default {
  async fetch(request, env) {
    const found = PATH.exec(new URL(request.url).pathname);
    if (!found || request.method !== "POST") return refuse(404, 7000, "No route for that URI");
    if (request.headers.get("authorization") !== "Bearer " + TOKEN) return refuse(401, 10000, "Authentication error");
    if (found[1] !== ACCOUNT)
      return refuse(403, 7403, "The given account is not valid or is not authorized to access this service");
    const db = env[found[2]];
    if (!db) return refuse(404, 7404, "The database " + found[2] + " could not be found");
    try {
      const { batch, sql, params } = await request.json();
      const asked = batch ?? [{ sql, params }];
      const prepared = asked.map((one) => db.prepare(one.sql).bind(...(one.params ?? [])));
      const result = await db.batch(prepared);
      return answer(200, { result });
    } catch (error) {
      return refuse(400, 7500, String(error.message).replace(/^D1_ERROR: /, ""));
    }
  },
};`;

const server = new Miniflare({
  script: worker, modules: true, compatibilityDate: "2026-04-01", host: "127.0.0.1", port: Number(port), cf: false,
  d1Databases: Object.fromEntries(names.map((name) => [name, name])), d1Persist: databases,
});
await server.ready;
console.log("ready");
process.stdin.resume();
process.stdin.on("end", async () => {
  await server.dispose();
  process.exit(0);
});
